"""A gallery of maps as one still HTML page that needs no other file."""

from base64 import b64encode

from jinja2 import Environment

from lewel.report.gallery import Gallery
from lewel.report.overlays import enlarged, overlay, png, raw_range

TILE = 144
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Where the network looks</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body { font: 14px/1.5 system-ui, sans-serif; color: #1e1e1e; margin: 2rem; }
p { max-width: 46rem; } h2 { font-size: 1rem; margin: 2rem 0 .3rem; }
.wide { overflow-x: auto; } td, th { padding: 0 4px 6px 0; text-align: center; }
th { font-weight: 500; } td { font-size: 11px; color: #6e6e6e; } img { display: block; }
</style></head><body>
<h1>Where the network looks</h1>
<p>Chosen by the rule: {{ gallery.rule }}. Heat goes from the lowest to the highest value of each
map in a view; both stand below it, in thousandths (a map sums to 1).</p>
{% if gallery.note %}<p>{{ gallery.note }}</p>{% endif %}
{% for image in images %}
<h2>{{ image.name }}</h2>
<div class="wide"><table>
<tr><th></th>{% for number in gallery.chosen %}<th>map {{ number }}</th>{% endfor %}</tr>
{% for row in image.rows %}<tr>{% for tile in row %}
<td><img width="{{ side }}" height="{{ side }}" alt="{{ tile.what }}" src="{{ tile.source }}">
{{ tile.below }}</td>{% endfor %}</tr>{% endfor %}
</table></div>
{% endfor %}
</body></html>
"""


def still_page(gallery: Gallery) -> str:
    """The page's text."""
    images = []
    for seen in gallery.images:
        rows = []
        for view in seen.views:
            row = [_tile(png(enlarged(view.image, TILE)), f"{seen.name}, {view.caption}")]
            row[0]["below"] = view.caption
            for number, values in zip(gallery.chosen, view.maps, strict=True):
                what = f"map {number} of {seen.name}, {view.caption}"
                tile = _tile(png(overlay(view.image, values, TILE)), what)
                row.append({**tile, "below": raw_range(values)})
            rows.append(row)
        images.append({"name": seen.name, "rows": rows})
    template = Environment(autoescape=True).from_string(PAGE)
    return template.render(gallery=gallery, images=images, side=TILE)


def _tile(content: bytes, what: str) -> dict[str, str]:
    return {"source": f"data:image/png;base64,{b64encode(content).decode()}", "what": what}

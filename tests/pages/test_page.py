"""The page as text: complete without scripts, escaped, self-contained."""

import base64
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from lewel.pages import page as page_module
from lewel.pages.page import LARGEST, gallery_page, report_page
from lewel.pages.pictures import quantise
from lewel.train.summary import Summary
from tests.pages.making import NASTY, made_run, metric_lines, picture, random_gallery

VOID = {"meta", "link", "img", "input", "br"}


class Outline(HTMLParser):
    """Elements, their attributes and all text, as a browser without scripts would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.data: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.data.append(data)
        elif not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def test_all_content_is_in_the_text_and_all_elements_are_closed() -> None:
    page = Outline(report_page([made_run(predictions=(picture("dog.png"),))]))
    assert page.open == []
    for words in ("10.0% → 60.0%", "53.6%", "lewel pretrain --recipe", "not an image", "2.6"):
        assert words in page.text
    for title in ("Loss", "k-NN accuracy", "Learning rate", "Images per second", "Data wait"):
        assert title in page.text
    assert "dog.png" in page.text
    images = [about for tag, about in page.elements if tag == "img"]
    assert len(images) == 3 * 3 * (1 + 5) + 1 + 3 * (1 + 5 + 5)  # maps, prediction, neighbours
    assert all(about["alt"] for about in images)


def test_nothing_is_fetched_from_anywhere() -> None:
    page = report_page([made_run(), made_run("other")])
    outline = Outline(page)
    for _, about in outline.elements:
        for name in ("src", "href", "srcset", "action", "data"):
            assert (about.get(name) or "#").startswith(("#", "data:"))
    assert not re.search(r"https?://", page)
    assert "url(" not in page and "@import" not in page


def test_names_are_text_never_markup() -> None:
    run = made_run("<script>alert(2)</script>", headline="</title><script>alert(3)</script>")
    page = report_page([run])
    outline = Outline(page)
    assert [tag for tag, _ in outline.elements].count("script") == 2  # the data and ours
    assert not any(about.get("src") == "x" for _, about in outline.elements)
    assert not any(name.startswith("on") for _, about in outline.elements for name in about)
    assert NASTY in outline.text and "<b>gear" in outline.text
    assert "<script>alert(2)</script>" in outline.text


def test_script_data_holds_no_character_that_could_end_it() -> None:
    gallery = random_gallery(images=2)
    name = "</script><!-- & \u2028 \u2029 \udcff"
    renamed = gallery.images[1].__class__(name, gallery.images[1].views)
    page = gallery_page(gallery.__class__(**{**vars(gallery), "images": (renamed,)}))
    (holder,) = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page, re.S)
    assert not set("<>&\u2028\u2029") & set(holder)
    assert json.loads(holder)["images"][0]["name"] == name


def test_script_data_holds_every_map_of_every_view() -> None:
    gallery = random_gallery()
    page = Outline(gallery_page(gallery))
    data = json.loads(page.data[0])
    assert data["chosen"] == list(gallery.chosen)
    for image, stored in zip(gallery.images, data["images"], strict=True):
        for view, numbers in zip(image.views, stored["views"], strict=True):
            levels = np.frombuffer(base64.b64decode(numbers["levels"]), dtype=np.uint8)
            assert levels.tolist() == quantise(view.maps)[0].flatten().tolist()
            low, high = float(view.maps[2].min()), float(view.maps[2].max())
            assert numbers["spans"][2] == f"{low:.3g} to {high:.3g}"
    assert gallery.rule in page.text


def test_a_full_gallery_and_long_curves_fit_at_full_detail() -> None:
    gallery = random_gallery(images=8, maps=8, side=224, grid=7)  # noise: the worst for JPEG
    page = report_page([made_run(gallery=gallery, metrics=Summary.of(metric_lines(3000)))])
    assert len(page.encode()) < LARGEST
    assert "too large" not in page


def test_a_page_that_would_be_too_large_shows_less_and_reports_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = made_run(
        gallery=random_gallery(images=10, maps=2, side=96),
        predictions=tuple(picture(f"{index}.png", 300) for index in range(5)),
    )
    whole = report_page([run])
    assert "more in the run folder" not in whole and "too large" not in whole
    monkeypatch.setattr(page_module, "LARGEST", len(whole) // 3)
    page = report_page([run])
    assert len(page.encode()) < len(whole) // 3
    assert "more in the run folder" in page
    assert "more images are left out: this page would be too large" in page


def test_runs_are_shown_side_by_side_and_differences_are_marked() -> None:
    one, two = made_run("one"), made_run("two", settings={"seed": "1", "optim.lr": "0.1"})
    page = report_page([one, two])
    rows = re.findall(r"<tr( class=\"differ\")?><th scope=\"row\">([^<]*)</th>", page)
    assert (' class="differ"', "seed") in rows and ("", "optim.lr") in rows
    assert page.count('id="results"') == 1 and "2 runs side by side" in page


def test_the_page_of_an_empty_run() -> None:
    from lewel.pages.run_data import RunData

    page = Outline(report_page([RunData("soon", "runs/soon")], refresh=5))
    assert "Nothing written yet" in page.text and "runs/soon" in page.text
    assert "Loss" not in page.text


@pytest.mark.parametrize("note", [None, "byol has no maps of its own & <none>"])
def test_a_gallery_shows_its_note(note: str | None) -> None:
    gallery = random_gallery(images=1)
    page = Outline(gallery_page(gallery.__class__(**{**vars(gallery), "note": note})))
    assert (note or "") in page.text

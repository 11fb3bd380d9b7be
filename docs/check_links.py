"""Checks the built site: every internal link, picture and anchor exists. None outside is fetched.

python docs/check_links.py site
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The links of an HTML page, and the anchors that links can lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.fetched: list[str] = []  # what a browser loads by itself
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value for name, value in attrs if value}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and values.get("rel") in {"stylesheet", "icon", "preload"}:
            self.fetched.append(values.get("href", ""))
        elif tag in {"img", "script", "source", "iframe"} and "src" in values:
            self.fetched.append(values["src"])


def faults(site: Path) -> list[str]:
    """What is wrong, one line each."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = [] if pages else [f"{site} holds no HTML pages"]
    for path, page in pages.items():
        shown = path.relative_to(site)
        for link in page.fetched:
            if urlsplit(link).netloc:
                found.append(f"{shown} loads {link} from another host")
        if path.name == "404.html":  # its links hold wherever it is served
            continue
        for link in {*page.links, *page.fetched}:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path.resolve()
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                found.append(f"{shown} links to {link}, which does not exist")
            elif parts.fragment and target.suffix == ".html":
                known = next(p for other, p in pages.items() if other.resolve() == target)
                if unquote(parts.fragment) not in known.anchors:
                    found.append(f"{shown} links to {link}, an anchor that does not exist")
    return found


def main() -> int:
    """Print the faults; 1 where there are any."""
    found = faults(Path(sys.argv[1] if len(sys.argv) > 1 else "site"))
    print("\n".join(found) if found else "every internal link and anchor exists")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""The built site needs nobody else: pages load nothing from other hosts. Its search finds guides first."""

from __future__ import annotations

import json
import sys
from html.parser import HTMLParser
from pathlib import Path


class Loads(HTMLParser):
    """Addresses that a browser fetches by itself when it shows the page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") in ("canonical", "edit", "next", "prev"):
            return
        address = given.get("href") if tag == "link" else given.get("src")
        self.found += [address] if address else []


def main(site: Path) -> str | None:
    """What is wrong with the site, None if nothing is."""
    pages = sorted(site.rglob("*.html"))
    if len(pages) < 30:
        return f"{site} has {len(pages)} pages only"
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        foreign = [address for address in loads.found if address.startswith(("http:", "https:", "//"))]
        if foreign:
            return f"{page} loads {', '.join(foreign)}"
    for style in site.rglob("*.css"):
        if "url(http" in style.read_text(encoding="utf-8"):
            return f"{style} loads something from another host"
    found = {
        entry["location"] for entry in json.loads((site / "search" / "search_index.json").read_text())["docs"]
    }
    if buried := sorted(place for place in found if place.startswith(("adr/", "explanation/promises"))):
        return f"search finds {buried[0]}, which it should leave out"
    if not any(place.startswith("guides/batches") for place in found):
        return "search does not find the guides"
    print(f"{len(pages)} pages, nothing on them is loaded from elsewhere")
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

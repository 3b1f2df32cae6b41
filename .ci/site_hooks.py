"""Hooks of the documentation's build: what the site's search leaves out.

Decisions and promises are for those who change the project. Their sentences name every feature, so that they
came before the guides for most words.
"""

from __future__ import annotations

from typing import Any

_LEFT_OUT = ("adr/", "explanation/promises.md", "explanation/airflow-actions/")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Mark a page that search shall not find; see `search.exclude` of Material for MkDocs."""
    if page.file.src_uri.startswith(_LEFT_OUT):
        page.meta["search"] = {"exclude": True}
    return markdown

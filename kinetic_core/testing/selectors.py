"""Which objects a request to Kubernetes selects.

https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#api and /field-selectors/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Object = Mapping[str, Any]

_TERM = re.compile(
    r"\s*(?P<absent>!)?(?P<name>[^\s,=!()]+)\s*"
    r"(?:(?P<relation>==?|!=|in|notin)\s*(?:\((?P<several>[^)]*)\)|(?P<value>[^,]*)))?\s*(?:,|$)"
)


def selected(item: Object, query: Mapping[str, str]) -> bool:
    """Whether an object has the labels and fields that a query's selectors ask for."""
    labels = item["metadata"].get("labels") or {}
    return _fits(query.get("labelSelector", ""), labels.get) and _fits(
        query.get("fieldSelector", ""), lambda path: _field(item, path)
    )


def _fits(selector: str, find: Callable[[str], Any]) -> bool:
    return all(_holds(term, find(term["name"])) for term in _TERM.finditer(selector))


def _holds(term: re.Match[str], found: Any) -> bool:
    relation = term["relation"]
    if relation is None:
        return (found is None) == bool(term["absent"])
    wanted = [term["value"]] if term["several"] is None else term["several"].split(",")
    return (found in [value.strip() for value in wanted]) == (relation in ("=", "==", "in"))


def _field(item: Object, path: str) -> Any:
    found: Any = item
    for name in path.split("."):
        found = (found or {}).get(name)
    return found

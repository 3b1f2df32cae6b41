"""Patches of objects, as the API server carries them out: merging, and applying."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kinetic_core.testing.kube_objects import KubeObjects, Object, Refused


def merge(item: Object, patch: Mapping[str, Any]) -> None:
    """A JSON merge patch (RFC 7396)."""
    for key, value in patch.items():
        if value is None:
            item.pop(key, None)
        elif isinstance(value, dict):
            if not isinstance(item.get(key), dict):
                item[key] = {}
            merge(item[key], value)
        else:
            item[key] = value


def applied(
    objects: KubeObjects, kind: str, namespace: str, name: str, body: Object, query: Mapping[str, str]
) -> tuple[int, Object]:
    """Server-side apply: status and object. Lists are whole values here, and fields that were left out stay.
    Of a dry run, the answer is what is there now, or what was asked for.

    Raises Refused with 409 for fields that are somebody else's.
    """
    manager = query["fieldManager"]
    with objects.changed:
        try:
            there = objects.get(kind, namespace, name)
        except Refused:
            if query.get("dryRun"):
                return 201, body
            mine = {"manager": manager, "operation": "Apply"}
            facts = {**body.get("metadata", {}), "managedFields": [mine]}
            return 201, objects.create(kind, namespace, {**body, "metadata": facts})
        managers = {each["manager"] for each in there["metadata"].get("managedFields", ())}
        taken = [] if manager in managers or query.get("force") == "true" else [*_conflicts(body, there)]
        if taken:
            text = f"Apply failed with {len(taken)} conflict(s): {', '.join(taken)}"
            raise Refused(409, "Conflict", text)
        if query.get("dryRun"):
            return 200, there
        entry = {"manager": manager, "operation": "Apply"}

        def edit(item: Object) -> None:
            merge(item, body)
            entries = item["metadata"].setdefault("managedFields", [])
            if entry not in entries:
                entries.append(entry)

        return 200, objects.change(kind, namespace, name, edit)


def _conflicts(body: Mapping[str, Any], there: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The fields that are there with another value."""
    for key, value in body.items():
        if key not in there:
            continue
        if isinstance(value, dict) and isinstance(there[key], dict):
            yield from _conflicts(value, there[key], f"{path}.{key}")
        elif there[key] != value:
            yield f"{path}.{key}"

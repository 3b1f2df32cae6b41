"""What programs that read `--json` rely on: the fields of each published schema, and their types.

`published.json` has them by schema and number, with JSON's names of types. Under a number that is there,
fields may only be added: write down a new one with its type. For anything else the schema gets another number
in `kinetic_core.cli.schemas.NUMBERS`, and an entry of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Fields = Mapping[str, str]

PUBLISHED: Mapping[str, Fields] = json.loads(Path(__file__).with_suffix(".json").read_text())
UNSEEN = "any"
"""The type of a field that no test sees with a value, or that has one of any type."""


def described(schema: Fields, shapes: Mapping[str, Fields]) -> Iterator[str]:
    """The fields a description names, those of the objects in its lists as `jobs[].job_id`."""
    for field, meaning in schema.items():
        yield field
        told = re.match(r"list of (\w+)(?![\w ])", meaning)
        shape = shapes.get(told[1]) if told else None
        named = re.match(r"list(, [\w ]+,)? of `", meaning)
        inner = shape or (re.findall(r"`(\w+)`", meaning.partition(":")[0]) if named else ())
        yield from (f"{field}[].{name}" for name in inner)


def changes(published: Mapping[str, Fields], now: Mapping[str, set[str]]) -> list[str]:
    """What is wrong with schemas, by name and number, as their descriptions have them `now`."""
    names = {name.partition("/")[0] for name in now}
    gone = [name for name in published if name.partition("/")[0] not in names]
    wrong = [f"{name} is published and gone" for name in gone]
    for name, fields in now.items():
        known = published.get(name, {}).keys()
        wrong += [f"{name} has lost {field}: give it another number" for field in sorted(known - fields)]
        wrong += [f"{name} has got {field}: write it into published.json" for field in sorted(fields - known)]
    return wrong


def misfits(told: Mapping[str, Any], published: Fields) -> list[str]:
    """The fields of an answer that have another type than their schema's, and times that are no numbers."""
    texts = [f"{path} is a time as text: {value}" for path, value in texts_of_times(told)]
    seen = {path: kinds for path, kinds in found_kinds(told).items() if path in published}
    return texts + [
        f"{path} is {kind}, and published as {published[path]}"
        for path, kinds in seen.items()
        for kind in sorted(kinds)
        if published[path] != UNSEEN and kind not in published[path].split(" or ")
    ]


def texts_of_times(told: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Times that an answer writes as text, with their paths.

    A manifest is Kubernetes' and may have some, an origin is Airflow's.
    """
    if isinstance(told, str) and re.fullmatch(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*", told):
        yield path, told
    for name, value in told.items() if isinstance(told, dict) else ():
        if name not in ("manifest", "origin"):
            yield from texts_of_times(value, f"{path}.{name}".lstrip("."))
    for value in told if isinstance(told, list) else ():
        yield from texts_of_times(value, f"{path}[]")


def times_of(published: Mapping[str, Fields]) -> Iterator[tuple[str, str, str]]:
    """The fields that are times, by their names: schema, path and type."""
    for schema, fields in published.items():
        for path, kind in fields.items():
            name = path.rpartition(".")[2]
            if name.endswith("_at") or name in ("at", "began", "written", "since", "until"):
                yield schema, path, kind


def found_kinds(told: Mapping[str, Any]) -> dict[str, set[str]]:
    """The types in an answer, by path."""
    found: dict[str, set[str]] = {}
    for field, value in told.items():
        found.setdefault(field, set()).add(kind_of(value))
        for one in value if isinstance(value, list) else ():
            for name, inner in one.items() if isinstance(one, dict) else ():
                found.setdefault(f"{field}[].{name}", set()).add(kind_of(inner))
    return found


def kind_of(value: object) -> str:
    """A type of JSON, by its name there."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"

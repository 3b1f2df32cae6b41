"""Small JSON documents of the store: read whole or not at all, and checked before anything is believed.

Whoever can write the store can write each of them. One that Kinetic has not written raises `MalformedObject`,
which names it: a list leaves it out, everything else says so.
"""

from __future__ import annotations

from typing import Any

from kinetic_core._runner import wire
from kinetic_core._runner.store import ObjectTooLarge, read_at_most
from kinetic_core.errors import MalformedObject
from kinetic_core.store.protocol import ObjectStore


def read_document(store: ObjectStore, name: str, **fields: type) -> dict[str, Any]:
    """The JSON object stored by that name, which has these fields, each of its type.

    Raises MalformedObject for anything else, ObjectNotFound.
    """
    try:
        return wire.document(read_at_most(store, name, wire.LARGEST_DOCUMENT), **fields)
    except (wire.Malformed, ObjectTooLarge) as exc:
        raise malformed(store, name, exc) from exc


def malformed(store: ObjectStore, name: str, why: object) -> MalformedObject:
    """The error that names an object."""
    return MalformedObject(f"{store.uri}/{name} is malformed, and was not written by Kinetic: {why}")


def read_start(store: ObjectStore, name: str) -> bytes:
    """The beginning of a stored frame, its whole head at least. Raises wire.FrameError, ObjectNotFound."""
    start = store.read_range(name, 0, wire.HEAD_BYTES)
    size = wire.head_size(start)
    return start if size <= len(start) else store.read_range(name, 0, size)

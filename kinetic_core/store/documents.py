"""Small JSON documents of the store: read whole or not at all, and checked before anything is believed.

Whoever can write the store can write each of them. One that Kinetic has not written raises `MalformedObject`,
which names it: a list leaves it out, everything else says so.
"""

from __future__ import annotations

import io
from typing import Any

from kinetic_core._runner import wire
from kinetic_core._runner.sizes import shown_size
from kinetic_core.errors import MalformedObject
from kinetic_core.store.protocol import ObjectStore


def read_document(store: ObjectStore, name: str, **fields: type) -> dict[str, Any]:
    """The JSON object stored by that name, which has these fields, each of its type.

    Raises MalformedObject for anything else, ObjectNotFound.
    """
    try:
        return wire.document(store.download(name, _Bounded).getvalue(), **fields)
    except wire.Malformed as exc:
        raise malformed(store, name, exc) from exc


def malformed(store: ObjectStore, name: str, why: object) -> MalformedObject:
    """The error that names an object."""
    return MalformedObject(f"{store.uri}/{name} is malformed, and was not written by Kinetic: {why}")


def read_start(store: ObjectStore, name: str) -> bytes:
    """The beginning of a stored frame, its whole head at least. Raises wire.FrameError, ObjectNotFound."""
    start = store.read_range(name, 0, wire.HEAD_BYTES)
    size = wire.head_size(start)
    return start if size <= len(start) else store.read_range(name, 0, size)


class _Bounded(io.BytesIO):
    """Bytes of a document as they arrive."""

    def write(self, content: wire.Buffer, /) -> int:  # type: ignore[override]  # of BytesIO, any buffer
        if self.tell() + len(content) > wire.LARGEST_DOCUMENT:
            raise wire.Malformed(f"it is larger than {shown_size(wire.LARGEST_DOCUMENT)}")
        return super().write(content)

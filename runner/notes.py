"""Notes that the attempts and hosts of one job leave for each other in the store, signed with the job's key.

Whoever can write to the store can replace a note: one without its job's signature is refused. A note is
JSON; each object has a key of its own, so that no note counts under another's name.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import Any

from . import wire
from .attempt import Job
from .store import Store

LONGEST_NOTE = 1 << 20
"""Bytes. Parsed, JSON takes up to thirty times as much memory, and only then its signature can be checked."""
_SIGNATURE = "signature"


class ForgedNote(ValueError):
    """Note that was written by somebody without the job's key."""


def encode_note(key: bytes | bytearray, name: str, told: Mapping[str, Any]) -> bytes:
    """Encode the note that is stored as `name`."""
    return sign_note(wire.object_key(key, name), told)


def sign_note(object_key: bytes | bytearray, told: Mapping[str, Any]) -> bytes:
    """Encode a note with the key of its object (`wire.object_key`)."""
    return json.dumps({**told, _SIGNATURE: _signature(object_key, told)}).encode()


def decode_note(key: bytes | bytearray, name: str, content: bytes) -> dict[str, Any]:
    """Decode the note that was stored as `name`. Raises ForgedNote, as for any note with an empty key."""
    return verified_note(wire.object_key(key, name) if key else b"", name, content)


def verified_note(object_key: bytes | bytearray, name: str, content: bytes) -> dict[str, Any]:
    """Decode a note with the key of its object; otherwise as `decode_note`."""
    try:
        told: dict[str, Any] = json.loads(content)
        signature = str(told.pop(_SIGNATURE))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        signature, told = "", {}
    expected = _signature(object_key, told)
    if not object_key or not hmac.compare_digest(signature.encode(errors="replace"), expected.encode()):
        raise ForgedNote(f"{name} is not what this job has stored: somebody without its key wrote it")
    return told


def read_note(job: Job, store: Store, name: str) -> dict[str, Any]:
    """Read a note of this job. Raises MissingObject, ForgedNote."""
    return decode_note(job.outcome_key, name, read_start(store, name))


def read_start(store: Store, name: str) -> bytes:
    """Read an object that is no longer than a note; of any other, as much. Raises MissingObject.

    A writer of the store can put an object of any size in the place of a note.
    """
    return store.read_range(name, 0, LONGEST_NOTE)


def _signature(object_key: bytes | bytearray, told: Mapping[str, Any]) -> str:
    text = json.dumps(told, separators=(",", ":"), sort_keys=True)
    return hmac.digest(object_key, text.encode("utf-8", "surrogatepass"), "sha256").hex()

"""States of the inputs in a segment of outcomes, sealed in the segment's metadata (ADR 0070).

A listing tells them, so that nobody needs to read a segment to know how its inputs have ended.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from . import wire
from .indexes import format_indexes, parse_indexes


def sealed_states(name: str, states: Mapping[str, str], key_id: str, key: bytes | bytearray) -> str:
    """Return the states of the segment `name`, by index, signed with the key of its lane."""
    found: dict[str, list[int]] = {}
    for index, state in states.items():
        found.setdefault(state, []).append(int(index))
    told = " ".join(f"{state}={format_indexes(own)}" for state, own in sorted(found.items()))
    return f"{key_id} {_seal(name, told, key)} {told}"


def sealing_key_id(sealed: str) -> str:
    """Return the id of the key that sealed states name."""
    return sealed.partition(" ")[0]


def opened_states(name: str, sealed: str, key: bytes | bytearray) -> dict[int, str] | None:
    """Return the states of the segment `name` by index; None for what the key has not sealed."""
    _, _, rest = sealed.partition(" ")
    seal, _, told = rest.partition(" ")
    if not hmac.compare_digest(seal.encode(), _seal(name, told, key).encode()):
        return None
    runs = (each.partition("=") for each in told.split())
    return {index: state for state, _, own in runs for index in parse_indexes(own)}


def _seal(name: str, told: str, key: bytes | bytearray) -> str:
    return hmac.digest(wire.object_key(key, name), f"states {told}".encode(), "sha256").hex()

"""Stores in which something was missing: what was seen in them before is looked at again."""

from __future__ import annotations

import hashlib
from pathlib import Path


def doubt(cache: Path, store_uri: str) -> None:
    """Note that a job did not find an object it is made of."""
    mark = _mark(cache, store_uri)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def doubted_at(cache: Path, store_uri: str) -> float:
    """When that was last, in Unix seconds; 0 for never."""
    try:
        return _mark(cache, store_uri).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _mark(cache: Path, store_uri: str) -> Path:
    return cache / "doubts" / hashlib.sha256(store_uri.encode()).hexdigest()

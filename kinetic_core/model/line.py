"""A batch whose jobs wait for their turn."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """Of its `size` jobs `limit` run at once, None for all.

    `fail_fast` starts none after one has failed; `cancel_running` also ends those that run.
    """

    group_id: str
    size: int
    limit: int | None
    fail_fast: bool
    cancel_running: bool

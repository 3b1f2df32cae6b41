"""What is asked of a batch besides what is asked of each of its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """How a batch is to run; `is_new` if its id was drawn for it, so that nothing of it can exist yet."""

    group_id: str
    is_new: bool
    input_mode: str
    max_concurrent: int | None
    fail_fast: bool
    cancel_running: bool
    name: str | None
    tags: Mapping[str, str]
    skip_done: bool = False

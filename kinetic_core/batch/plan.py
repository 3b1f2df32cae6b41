"""What is asked of a batch besides what is asked of each of its jobs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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

    def manifest(self, size: int, function_name: str, **more: Any) -> dict[str, Any]:
        """The batch's stored manifest (`batches/{group_id}/manifest.json`, spec 06), of `size` inputs.

        `more`: what only batches of one way to run have in theirs.
        """
        common = {
            "group_id": self.group_id,
            "group_kind": "map",
            "group_name": self.name,
            "tags": dict(self.tags),
            "created_at": time.time(),
            "total_expected": size,
            "submit_fn_name": function_name,
        }
        return {**common, **more}

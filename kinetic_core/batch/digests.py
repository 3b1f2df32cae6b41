"""When two batches are the same batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kinetic_core.batch.plan import Plan
from kinetic_core.lifecycle.digests import spec_digest
from kinetic_core.lifecycle.packing import Packed


def batch_digest(packed: Packed, items: Sequence[Any], plan: Plan, written: bytes = b"") -> str:
    """SHA-256 in hex over all that decides what a batch does, comparable between processes.

    `written`: what stands for the inputs of one whose id was drawn for it, which is compared with no other.
    """
    asked = {"mode": plan.input_mode, "fail_fast": plan.fail_fast, "cancel_running": plan.cancel_running}
    call = None if plan.is_new else (packed.function, tuple(items), asked)
    return spec_digest(packed, written, call)

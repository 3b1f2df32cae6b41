"""When two batches are the same batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kinetic_core.batch.inputs import arguments_of
from kinetic_core.batch.plan import Plan
from kinetic_core.lifecycle.digests import spec_digest
from kinetic_core.lifecycle.packing import Packed
from kinetic_core.lifecycle.preparing import pickle_arguments


def batch_digest(packed: Packed, items: Sequence[Any], plan: Plan, written: bytes = b"") -> str:
    """SHA-256 in hex over all that decides what a batch does, comparable between processes.

    Inputs that cannot be pickled count by their type. `written`: what stands for the inputs of a batch whose
    id was drawn for it, which is compared with no other.
    """
    if plan.is_new:
        return spec_digest(packed, written, None)
    asked = {"mode": plan.input_mode, "fail_fast": plan.fail_fast, "cancel_running": plan.cancel_running}
    try:
        return spec_digest(packed, b"", (packed.function, tuple(items), asked))
    except Exception:  # noqa: BLE001  whatever an input's own pickling raises: it is told as that input's failure
        known = (item if _travels(packed, item, plan) else type(item).__qualname__ for item in items)
        return spec_digest(packed, b"", (packed.function, tuple(known), asked))


def _travels(packed: Packed, item: Any, plan: Plan) -> bool:
    try:
        pickle_arguments(packed, *arguments_of(item, plan.input_mode))
    except Exception:  # noqa: BLE001  as above
        return False
    return True

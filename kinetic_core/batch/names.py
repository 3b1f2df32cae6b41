"""Where a batch is stored."""

from __future__ import annotations

from kinetic_core._runner.wire import batch_object, child_id, finished_object
from kinetic_core.lifecycle.children import MANIFEST

__all__ = [
    "child_id",
    "failure_object",
    "finished_object",
    "inputs_object",
    "line_object",
    "manifest_object",
    "resumption_object",
    "resumptions",
]


def manifest_object(group_id: str) -> str:
    return batch_object(group_id, MANIFEST)


def failure_object(group_id: str, index: int) -> str:
    """Why an input could not be submitted."""
    return batch_object(group_id, f"failures/{index:06d}.json")


def inputs_object(group_id: str, sha256: str) -> str:
    """The arguments of all inputs, where they share a Job."""
    return batch_object(group_id, f"inputs-{sha256}")


def line_object(group_id: str, sha256: str) -> str:
    """The jobs of all inputs, where each has one of its own and waits for its turn."""
    return batch_object(group_id, f"line-{sha256}")


def resumption_object(group_id: str, number: int) -> str:
    """Somebody lets inputs without a value run again; where they share Jobs, as the part of that number."""
    return resumptions(group_id) + str(number)


def resumptions(group_id: str) -> str:
    """What the names of those begin with."""
    return batch_object(group_id, "resumed-")

"""Where a batch and its jobs are stored."""

from __future__ import annotations


def manifest_object(group_id: str) -> str:
    return f"batches/{group_id}/manifest.json"


def finished_object(group_id: str) -> str:
    """Its presence says that no further input will be submitted; it lists those never launched."""
    return f"batches/{group_id}/finished.json"


def failure_object(group_id: str, index: int) -> str:
    """Why an input could not be submitted."""
    return f"batches/{group_id}/failures/{index:06d}.json"


def child_id(group_id: str, index: int) -> str:
    """The job id of one input: a function of the batch, so that attaching needs no list."""
    return f"{group_id}-{index}"

"""Input of a batch: where it is stored, and whether the rest of the batch lets it run."""

from __future__ import annotations

import bisect
import sys
from typing import Any

from . import object_names, wire
from .attempt import Job
from .outcome import Outcome, failed
from .payload import read_frame
from .store import Store, exists


def why_not(job: Job, store: Store) -> Outcome | None:
    """Return the outcome of a job, of a batch or not, that must not start; None for one that may."""
    marks = [object_names.cancel(job.job_id)]
    if job.group_id is not None:  # a signal that came before this process had a handler is lost
        marks.append(object_names.chunk_cancel(job.group_id, job.key_id))
    if any(exists(store, mark) for mark in marks):
        return _cancelled("it was cancelled before it started")
    if job.group_id is not None and job.fail_fast and exists(store, object_names.stop(job.group_id)):
        text = "not started: another input had failed, and fail_fast was asked for"
        sys.stderr.write(f"kinetic: {text}\n")
        failure = wire.Failure(wire.FailureClass.CANCELLED, text, "start")
        return Outcome(wire.DROPPED, "none", {}, failure, retry=False)
    return None


def was_cancelled(job: Job, store: Store) -> Outcome | None:
    """Return the outcome of an input that was cancelled; None if its pod was stopped otherwise."""
    return _cancelled("it was cancelled") if exists(store, object_names.cancel(job.job_id)) else None


def _cancelled(text: str) -> Outcome:
    sys.stderr.write(f"kinetic: {text}\n")
    return failed(wire.FailureClass.CANCELLED, text, "start", retry=False)


def tell_failure(job: Job, store: Store, outcome: Outcome, round_number: int = 0) -> None:
    """Let no further input of the batch, or of a map's round, start, unless this one was cancelled."""
    assert job.group_id is not None  # noqa: S101  asked of a batch's jobs only
    if outcome.failure is not None and outcome.failure.failure_class == wire.FailureClass.CANCELLED:
        return
    store.create_if_absent(object_names.stop(job.group_id, round_number), job.job_id.encode())


def batch_payload(job: Job, store: Store) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Read header and parts of one input's payload: the batch's own, with this input's arguments.

    The payload's header names the blocks in which the arguments of all inputs lie, each with its digest; one
    block is read, a range of one object. Raises ValueError if anything differs from what was submitted.
    """
    assert job.group_id is not None  # noqa: S101
    assert job.index is not None  # noqa: S101
    name = object_names.batch_payload(job.group_id, job.payload_sha256)
    frame = read_frame(store, name, job.payload_sha256, job.payload_bytes)
    decoded, parts = wire.decode_frame(frame)
    header: dict[str, Any] = decoded
    blocks = header["inputs"]["blocks"]
    at = bisect.bisect_right(blocks, job.index, key=lambda block: block[0]) - 1
    _, offset, size, sha256 = blocks[at]
    block = store.read_range(header["inputs"]["object"], offset, size)
    if wire.digest(block) != sha256:
        raise ValueError("the stored inputs are not those this batch was submitted with; nothing was loaded")
    _, inputs = wire.decode_frame(block)
    for name in ("arguments", "argument_copies"):
        parts[name] = inputs[f"{job.index}/{name}"]
    header["output_dir"] += str(job.index)
    header["env"]["KINETIC_OUTPUT_DIR"] = header["output_dir"]
    return header, parts

"""Phases of an attempt: when each began, noted by the process that sees it, in its working directory."""

from __future__ import annotations

import os
import sys
import time

from .attempt import Job

_FILE = "times"


def note(job: Job, name: str, at: float | None = None) -> None:
    """Note that phase `name` begins `at` that time, None for now; of two notes of one name the later counts.

    A failed write is ignored, so that no attempt ends because user code has filled the disk.
    """
    try:
        with open(os.path.join(job.work_dir, _FILE), "a") as stream:
            stream.write(f"{name} {at or time.time()!r}\n")
    except OSError as exc:
        sys.stderr.write(f"kinetic: when {name} began is not noted: {exc}\n")


def times(job: Job) -> dict[str, float]:
    """Return the noted times in Unix seconds, by phase."""
    try:
        with open(os.path.join(job.work_dir, _FILE)) as stream:
            pairs = [line.split() for line in stream]
    except OSError:
        return {}
    return {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2}

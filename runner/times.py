"""When what began in an attempt: noted by whichever process sees it, kept in its working directory."""

from __future__ import annotations

import os
import time

from .job import Job

_FILE = "times"


def note(job: Job, name: str) -> None:
    """`name` begins now. Of two notes of one name the later one counts."""
    with open(os.path.join(job.work_dir, _FILE), "a") as stream:
        stream.write(f"{name} {time.time()!r}\n")


def times(job: Job) -> dict[str, float]:
    """In Unix seconds, as far as it was noted."""
    try:
        with open(os.path.join(job.work_dir, _FILE)) as stream:
            pairs = [line.split() for line in stream]
    except OSError:
        return {}
    return {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2}

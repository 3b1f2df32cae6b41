"""`KINETIC_PREEMPTED`: a file by which any process of user code finds out that its pod was told to leave."""

from __future__ import annotations

import os
import sys

from .job import Job

VARIABLE = "KINETIC_PREEMPTED"
_FILE = "preempted"


def notice_path(job: Job) -> str:
    """Where the file will be, of this attempt."""
    return os.path.join(job.work_dir, _FILE)


def give_notice(job: Job) -> None:
    """Make the file. Where it cannot be made, the container's log says so: SIGTERM follows in any case."""
    try:
        with open(notice_path(job), "w"):
            pass
    except OSError as exc:
        sys.stderr.write(f"kinetic: no file says that this pod must go: {exc}\n")

"""Notice of preemption, `KINETIC_PREEMPTED`: a file that exists once the pod was told to leave."""

from __future__ import annotations

import os
import sys

from .attempt import Job

VARIABLE = "KINETIC_PREEMPTED"
_FILE = "preempted"


def notice_path(job: Job) -> str:
    """Return the path of the file, for this attempt."""
    return os.path.join(job.work_dir, _FILE)


def give_notice(job: Job) -> None:
    """Create the file, or say in the container's log why not; SIGTERM follows in any case."""
    try:
        with open(notice_path(job), "w"):
            pass
    except OSError as exc:
        sys.stderr.write(f"kinetic: no file says that this pod must go: {exc}\n")

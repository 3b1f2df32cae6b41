"""Debugger of a job with `debug=True`: user code waits for one, which connects through the loopback alone.

debugpy listens where nothing outside this pod (or machine) can connect; a client comes through a port that
the submitter's process forwards. Of a slice, host 0 is debugged, and the others wait with it: they must not
start a distributed runtime whose first member stands still.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from typing import Any

from . import object_names
from .attempt import Job
from .processes import errors_of
from .rendezvous import DEBUGGED, Generation, Rendezvous
from .store import Store, exists

_LOOPBACK = "127.0.0.1"
_LOOK = 0.05


def await_debugger(job: Job, store: Store, workspace: str) -> None:
    """Wait until a client is attached and has set its breakpoints, or until the wait is over.

    Raises ValueError if debugpy is missing and cannot be installed.
    """
    others = Rendezvous(job, store, Generation(_generation())) if job.hosts > 1 else None
    if others is not None and job.host != 0:
        while not exists(store, others.object_name(DEBUGGED)):  # unsigned: user code is loaded, the key gone
            time.sleep(others.pause)
        return
    # Otherwise debugpy warns, in the job's log, of modules that no user debugs.
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    debugpy = _debugpy(os.path.join(job.work_dir, "debugger"))
    _, port = debugpy.listen((_LOOPBACK, 0))
    sys.breakpointhook = debugpy.breakpoint
    told = {"port": port, "workspace": os.path.realpath(workspace)}
    store.create_if_absent(object_names.debugger(job.job_id, job.pod_uid), json.dumps(told).encode())
    _say(f"waiting up to {job.debug_wait:g} s for a debugger: kinetic jobs debug {job.job_id}")
    give_up = time.monotonic() + (job.debug_wait or 0.0)
    # True once the client has set its breakpoints. debugpy's own waiting has no time-out.
    while not (is_attached := debugpy.is_client_connected()) and time.monotonic() < give_up:
        time.sleep(_LOOK)
    _say("a debugger is attached" if is_attached else "no debugger came: the function runs without one")
    if others is not None:
        store.create_if_absent(others.object_name(DEBUGGED), b"")


def _generation() -> int:
    """Return how often the hosts of the slice have started together before."""
    counts = ("KINETIC_FAILED_COUNT", "KINETIC_IGNORED_COUNT")  # of all hosts, see slice.py
    return sum(int(os.environ.get(name) or 0) for name in counts)


def _debugpy(folder: str) -> Any:
    """Import debugpy of the image or project, or install the newest version behind everything else."""
    try:
        return import_module("debugpy")
    except ImportError:
        install(folder)
        sys.path.append(folder)
        return import_module("debugpy")


def install(folder: str) -> None:
    """Install debugpy into a folder, with uv or pip. Raises ValueError if neither can."""
    told = ""
    uv = ["uv", "pip", "install", "--quiet", "--python", sys.executable]
    pip = [sys.executable, "-m", "pip", "install", "--quiet"]
    for command in (uv, pip):
        try:
            code, errors = errors_of(*command, "--target", folder, "debugpy")
        except FileNotFoundError:
            continue
        if code == 0:
            return
        told = told or errors[-1000:]
    raise ValueError(
        "debug=True needs debugpy, which the image lacks, and it cannot be installed now: "
        f"{told or 'there is neither uv nor pip'}. Name debugpy in the project's requirements, or use an "
        "image that has it"
    )


def _say(text: str) -> None:
    sys.stderr.write(f"kinetic: {text}\n")
    sys.stderr.flush()

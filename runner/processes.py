"""Descendants of a process: found in /proc, kept below it by prctl(2), ended with it.

Linux only. Elsewhere (the local backend on macOS) none is found, and only a process group can be ended.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Collection
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

DETACHED = "KINETIC_DETACHED"
"""Variable of the local backend's own processes: a job that a job has submitted outlives it.

In a pod nothing but the pod's own job may live on, and user code can set any variable.
"""
STOPPING = (signal.SIGTERM, signal.SIGINT)
"""Signals that tell a process to stop."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_SECONDS = 0.005
_DYING_SECONDS = 5.0


def errors_of(*command: str) -> tuple[int, str]:
    """Run a program; return its exit code and what it wrote on stderr. Raises FileNotFoundError."""
    import subprocess

    done = subprocess.run(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    return done.returncode, done.stderr.strip()


def fork_quietly() -> tuple[int, set[signal.Signals | int]]:
    """Fork with the child's stop signals held back; return its id, and the mask that lets them in.

    What reaches the child before it has handlers of its own would go to its parent's, which say it to nobody.
    The child must set its handlers, and then `pthread_sigmask(SIG_SETMASK, mask)`.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    child = -1
    try:
        child = os.fork()
    finally:
        if child:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return child, mask


def seed_again() -> None:
    """Give a forked process random numbers of NumPy's own, as Python's `random` does by itself.

    PyTorch begins with the same number in every process, and JAX has no global state.
    """
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()


def adopt_orphans() -> bool:
    """Make this process the parent of orphans below it, in place of process 1; False if it cannot be."""
    return os.getpid() == 1 or _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent, which must have the id `parent`, has died."""
    if _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) and os.getppid() != parent:
        os._exit(1)  # it has died before


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    try:
        return bool(c_library().prctl(option, value, 0, 0, 0) == 0)
    except (ImportError, AttributeError, OSError):
        return False


@cache
def c_library() -> ctypes.CDLL:
    """Return the C library. Opened once, it costs the many children of one process nothing."""
    import ctypes

    return ctypes.CDLL(None)


def statuses() -> dict[int, list[str]]:
    """Return for every process the fields of proc_pid_stat(5) after its name: state, parent, group, …"""
    found = {}
    try:
        entries = [entry for entry in os.listdir("/proc") if entry.isdigit()]
    except OSError:
        return {}
    for entry in entries:
        try:
            with open(f"/proc/{entry}/stat", errors="replace") as stream:
                found[int(entry)] = stream.read().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
    return found


def below(
    ancestor: int,
    known: dict[int, list[str]] | None = None,
    spared: Collection[int] = (),
    *,
    is_local: bool = False,
) -> list[int]:
    """List all descendants of a process, dead ones that were not waited for included.

    Left out are the `spared` with all below them; where the backend `is_local`, also the processes of other
    jobs that were submitted there.
    """
    known = statuses() if known is None else known
    children: dict[int, list[int]] = {}
    for pid, fields in known.items():
        children.setdefault(int(fields[1]), []).append(pid)
    found: list[int] = []
    pending = [ancestor]
    while pending:
        own = [
            pid
            for pid in children.get(pending.pop(), [])
            if pid not in spared and not (is_local and _is_detached(pid))
        ]
        found += own
        pending += own
    return found


def _is_detached(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            return f"\0{DETACHED}=".encode() in b"\0" + stream.read()
    except OSError:
        return False  # it has ended, or is a runner


def end_below(
    ancestor: int,
    seconds: float = _DYING_SECONDS,
    *,
    collect: bool = False,
    spared: Collection[int] = (),
    is_local: bool = False,
) -> list[int]:
    """Kill the descendants of a process until none lives; return those that still do after `seconds`.

    With `collect` all dead children of this process, which must be the `ancestor`, are waited for. What
    `below` leaves out lives on.
    """
    if collect and not _collect():
        return []  # reading /proc takes longer than all else that ends a job
    deadline = time.monotonic() + seconds
    while True:
        known = statuses()
        found = below(ancestor, known, spared, is_local=is_local)
        living = [pid for pid in found if known[pid][0] not in "ZX"]
        for pid in living:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue  # it has ended, or is another user's
        if collect:
            _collect()
        if not living or time.monotonic() > deadline:
            return living
        time.sleep(_LOOK_SECONDS)


def _collect() -> bool:
    """Wait for all dead children; return whether this process has others, and so may have descendants."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True

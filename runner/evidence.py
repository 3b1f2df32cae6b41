"""What is known of a child that left no outcome: how it died, and whether memory ran out."""

from __future__ import annotations

import os
import signal

from . import wire
from .outcome import Outcome
from .watch import Ending

_COUNTERS = (
    ("/sys/fs/cgroup", "memory.events"),  # cgroup v2
    ("/sys/fs/cgroup/memory", "memory.oom_control"),  # cgroup v1
)


def death(ending: Ending, last_lines: tuple[str, ...], remark: str = "") -> Outcome:
    """The outcome of a child that ended without leaving one; `last_lines` are what it printed last."""
    killed = ending.signal == signal.SIGKILL and not ending.terminated
    if killed and out_of_memory_kills() > 0:
        kind, text = wire.FailureClass.OUT_OF_MEMORY, "was killed because the job's memory ran out"
    elif ending.terminated:
        kind, text = wire.FailureClass.PREEMPTED, "was told to stop"
    elif ending.signal is not None:
        kind, text = wire.FailureClass.USER_ERROR, f"was killed by {_signal_name(ending.signal)}"
    else:
        kind = wire.FailureClass.USER_ERROR
        text = f"exited with code {ending.exit_code} before the function returned (os._exit?)"
    code = None if ending.signal is not None or ending.terminated else ending.exit_code
    failure = wire.Failure(
        kind,
        f"the process {text}{remark}",
        "execute",
        exit_code=code,
        signal=ending.signal,
        last_lines=last_lines,
    )
    return Outcome("failed", "none", {}, failure)


def out_of_memory_kills() -> int:
    """How many processes of this container's cgroup the kernel killed for memory; 0 if it cannot be told."""
    for path in _counter_files():
        try:
            with open(path) as stream:
                for line in stream:
                    name, _, count = line.partition(" ")
                    if name == "oom_kill":
                        return int(count)
        except (OSError, ValueError):
            continue  # this controller is not here: ask the other
    return 0


def peak_memory() -> int:
    """The most memory that any one process of user code had, in bytes."""
    import resource
    import sys

    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2) of either system
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit


def _counter_files() -> list[str]:
    """This process's own counters; in a container its cgroup is the mount's root."""
    groups: dict[str, str] = {}
    try:
        with open("/proc/self/cgroup") as stream:
            for line in stream:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                groups[controllers] = path
    except (OSError, ValueError):
        return []
    own: list[str | None] = [
        groups.get(""),
        next((groups[c] for c in groups if "memory" in c.split(",")), None),
    ]
    files = []
    for (mount, name), group in zip(_COUNTERS, own, strict=True):
        if group is not None:
            files.append(os.path.join(mount + group.rstrip("/"), name))
            files.append(os.path.join(mount, name))
    return [file for file in files if os.path.exists(file)]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

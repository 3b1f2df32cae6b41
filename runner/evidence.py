"""What is known of a child that left no outcome: how it died, and whether memory ran out."""

from __future__ import annotations

import os
import signal

from . import wire
from .outcome import Outcome, failed
from .watch import Ending

_COUNTERS = (
    ("/sys/fs/cgroup", "memory.events"),  # cgroup v2
    ("/sys/fs/cgroup/memory", "memory.oom_control"),  # cgroup v1
)


def death(ending: Ending, remark: str = "") -> Outcome:
    """The outcome of a child that ended without leaving one."""
    if ending.signal == signal.SIGKILL and not ending.terminated and out_of_memory_kills() > 0:
        return failed(
            wire.FailureClass.OUT_OF_MEMORY,
            f"the process was killed because the job's memory ran out{remark}",
            "execute",
            signal=ending.signal,
        )
    if ending.terminated:
        return failed(
            wire.FailureClass.PREEMPTED, f"the job was told to stop{remark}", "execute", signal=ending.signal
        )
    if ending.signal is not None:
        name = _signal_name(ending.signal)
        return failed(
            wire.FailureClass.USER_ERROR,
            f"the process was killed by {name}{remark}",
            "execute",
            signal=ending.signal,
        )
    return failed(
        wire.FailureClass.USER_ERROR,
        f"the process exited with code {ending.exit_code} before the function returned (os._exit?){remark}",
        "execute",
        exit_code=ending.exit_code,
    )


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

"""A memory limit for a process group, by cgroup, where this machine lets us make one."""

from __future__ import annotations

import os


class MemoryLimit:
    """A cgroup of one attempt. `enter` moves a process in, `kills` counts out-of-memory kills in it."""

    def __init__(self, folder: str, events: str) -> None:
        self.folder = folder
        self._events = os.path.join(folder, events)

    def enter(self) -> None:
        """Move this process into the group; everything it starts stays there."""
        with open(os.path.join(self.folder, "cgroup.procs"), "w") as stream:
            stream.write("0")

    def kills(self) -> int:
        """How many processes the kernel killed because the limit was reached."""
        with open(self._events) as stream:
            for line in stream:
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
        return 0

    def end(self) -> None:
        """Kill what is left in the group, where the kernel can (cgroup v2, Linux 5.14)."""
        path = os.path.join(self.folder, "cgroup.kill")
        if os.path.exists(path):
            with open(path, "w") as stream:
                stream.write("1")

    def remove(self) -> None:
        """Remove the group; it must be empty."""
        os.rmdir(self.folder)


def limit_memory(name: str, limit: int) -> MemoryLimit:
    """A new group of at most `limit` bytes. Raises OSError if this machine lets us make none."""
    parent, events = _parent()
    folder = os.path.join(parent, f"kinetic-{name}")
    os.mkdir(folder)
    group = MemoryLimit(folder, events)
    try:
        if events == "memory.events":
            _write(folder, "memory.max", limit)
            _write(folder, "memory.swap.max", 0, optional=True)
        else:
            _write(folder, "memory.limit_in_bytes", limit)
            _write(folder, "memory.memsw.limit_in_bytes", limit, optional=True)
    except OSError:
        group.remove()
        raise
    return group


def _parent() -> tuple[str, str]:
    """The group this process is in, and the name of its file of events: cgroup v1 or v2."""
    with open("/proc/self/cgroup") as stream:
        groups = [line.rstrip("\n").split(":", 2) for line in stream]
    for _, controllers, path in groups:
        if "memory" in controllers.split(","):
            below = f"/sys/fs/cgroup/memory{path}"
            return below if os.path.isdir(below) else "/sys/fs/cgroup/memory", "memory.oom_control"
    path = next((path for _, controllers, path in groups if not controllers), "")
    below = f"/sys/fs/cgroup{path}"
    return below if os.path.isdir(below) else "/sys/fs/cgroup", "memory.events"


def _write(folder: str, name: str, value: int, *, optional: bool = False) -> None:
    path = os.path.join(folder, name)
    if optional and not os.path.exists(path):
        return  # no swap accounting here
    with open(path, "w") as stream:
        stream.write(str(value))

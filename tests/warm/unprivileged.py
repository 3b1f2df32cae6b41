"""Function that gives up, where it is loaded, what only root may do."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path


class Capabilities:
    """What root may do; whoever loads this gives them up."""

    def __reduce__(self) -> tuple[Callable[[], int], tuple[()]]:
        return give_up, ()


def give_up() -> int:
    header, nothing = struct.pack("Ii", 0x20080522, 0), bytes(24)
    return int(ctypes.CDLL(None).capset(header, nothing))


capabilities: object = Capabilities()


def reads_processes(_number: int) -> tuple[bool, bool]:
    """Return whether a process that is forked of this one can be read, and one that this is forked of."""
    assert capabilities == 0, "they were given up"
    if (own := os.fork()) == 0:
        signal.pause()
    found = readable(own), readable(os.getppid())
    os.kill(own, signal.SIGKILL)
    os.waitpid(own, 0)
    return found


def readable(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/environ").read_bytes())
    except PermissionError:
        return False

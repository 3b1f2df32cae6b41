"""How much processor time detached jobs take, so that a benchmark can leave it out."""

from __future__ import annotations

import ctypes
import os
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

_PR_SET_CHILD_SUBREAPER = 36
"""https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html"""
_PAUSE = 0.05


class Sampler(ABC):
    """Looks at something in a thread, every `pause` seconds inside the context."""

    def __init__(self, pause: float) -> None:
        self._pause = pause
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @abstractmethod
    def look(self) -> None:
        """Look once."""

    def _run(self) -> None:
        while True:
            self.look()
            if self._ended.wait(self._pause):
                return


class JobTime(Sampler):
    """Adopts the agents of jobs that descendants of this process start, and adds up what they take.

    `seconds`: user and system time of those that have ended, with what they ran. Linux only.
    """

    def __init__(self) -> None:
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "this process cannot adopt what its descendants leave")
        super().__init__(_PAUSE)
        self.seconds = 0.0
        self._agents: set[int] = set()

    def look(self) -> None:
        self._agents |= {pid for pid in _children() if _is_agent(pid)}
        for pid in list(self._agents):
            ended, _, usage = os.wait4(pid, os.WNOHANG)
            if ended:
                self._agents.remove(pid)
                self.seconds += usage.ru_utime + usage.ru_stime


def _children() -> list[int]:
    listed = Path("/proc/self/task").glob("*/children")
    return [int(pid) for each in listed for pid in each.read_text().split()]


def _is_agent(pid: int) -> bool:
    """Whether it was started as `kinetic_core.backends.local.queue` starts the agent of a job."""
    return b"\0agent\0" in Path(f"/proc/{pid}/cmdline").read_bytes()


def processor_seconds() -> tuple[float, float]:
    """Processor time that this machine has spent on anything, and on nothing, since it started."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    hertz, idle = os.sysconf("SC_CLK_TCK"), ticks[3] + ticks[4]
    return (sum(ticks) - idle) / hertz, idle / hertz

"""What a started attempt runs: the real runner, with the faults that its environment asks for.

It imports the runner alone, as a pod does: importing the client took 50 ms for each attempt.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinetic_core._runner import main as runner
from kinetic_core._runner import store as runner_store


class KillingStore(runner_store.DirectoryStore):
    """Kills the process at its n-th use: even numbers before the operation, odd ones after it.

    With `once`, a file that it makes then, no process is killed a second time.
    """

    def __init__(self, uri: str, root: str, at: int, once: Path | None = None) -> None:
        super().__init__(uri, root)
        self._left, self._once = at, once

    def create_if_absent(self, name: str, *values: Any) -> bool:
        self._step()
        created = super().create_if_absent(name, *values)
        self._step()
        return created

    def read_range(self, name: str, offset: int, size: int) -> bytes:
        self._step()
        return super().read_range(name, offset, size)

    def _step(self) -> None:
        if self._left == 0 and (self._once is None or not self._once.exists()):
            if self._once is not None:
                self._once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


class HangingStore(runner_store.DirectoryStore):
    """The second `replace` of this process is one that never ends."""

    replaced = 0

    def replace(self, name: str, content: bytes) -> None:
        HangingStore.replaced += 1
        if HangingStore.replaced == 2:
            time.sleep(3600)
        super().replace(name, content)


def attempt(kill_at: int | None) -> int:
    """What the started process runs."""
    if (forked := os.environ.get("SLOW_FORK")) is not None:
        os.register_at_fork(after_in_child=lambda: (Path(forked).touch(), time.sleep(0.5)))
    if (fault := os.environ.get("FAULT_OF_FIRST_RUNNER")) is not None:
        _let_fail(fault, fork=2 if "KINETIC_REUSE" in os.environ else 1)
    if "KILLED_CALL" in os.environ:
        return runner.main(_killing_a_call(int(os.environ["KILLED_CALL"]), Path(os.environ["KILLED_ONCE"])))
    if kill_at is None and "HANGING" not in os.environ:
        return runner.main()

    def opener(uri: str) -> runner_store.Store:
        root = uri.removeprefix("file://")
        return HangingStore(uri, root) if kill_at is None else KillingStore(uri, root, kill_at)

    return runner.main(opener)


def _let_fail(fault: str, fork: int) -> None:
    """Let the process of this one's fork of that number write no file beyond 80 KiB, or fork no process."""
    forks: list[int] = []

    def refuse(event: str, _: object) -> None:
        if event == "os.fork":
            raise BlockingIOError("no more processes")

    def begin() -> None:
        if len(forks) == fork and fault == "disk":
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (80 << 10, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
            )
        elif len(forks) == fork:
            sys.addaudithook(refuse)

    os.register_at_fork(before=lambda: forks.append(os.getpid()), after_in_child=begin)


def _killing_a_call(step: int, once: Path) -> Callable[[str], runner_store.Store]:
    """Open the worker's own store, and for the runners of its calls such that kill them, one of them once."""
    worker = os.getpid()

    def opener(uri: str) -> runner_store.Store:
        root = uri.removeprefix("file://")
        if os.getpid() == worker:
            return runner_store.DirectoryStore(uri, root)
        return KillingStore(uri, root, step, once)

    return opener

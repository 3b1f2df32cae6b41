"""Running the real runner in a real process, on a payload made here, with faults on request."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle

from kinetic_core._runner import main as runner
from kinetic_core._runner import object_names, wire
from kinetic_core._runner import store as runner_store
from kinetic_core._runner.notes import encode_note
from kinetic_core.jobs.collect import Outcome, read_outcome
from kinetic_core.store.directory import DirectoryObjectStore

KEY = bytes(range(32))
JOB = "job-00000000000000aa"


@dataclass
class Attempts:
    """Attempts of one job in a store of its own."""

    folder: Path
    retries: int = 0
    failed: int = 0
    ignored: int = 0
    header: dict[str, Any] = field(default_factory=dict)
    payload_sha256: str = ""
    payload_bytes: int = 0

    @property
    def store(self) -> DirectoryObjectStore:
        return DirectoryObjectStore(self.folder / "store")

    def submit(self, function: Callable[..., Any], *args: Any, **header: Any) -> Attempts:
        """Store a payload of this function."""
        described: dict[str, Any] = {
            "protocol": wire.PROTOCOL,
            "client": {"python": ".".join(map(str, sys.version_info[:3]))},
            "env": {},
            "tree": None,
            "cwd": "",
            "sys_path": [""],
            "function_name": "f",
            "modules": [],
            "volumes": [],
            "output_dir": "",
            **header,
        }
        module = sys.modules[getattr(function, "__module__", __name__)]
        cloudpickle.register_pickle_by_value(module)
        try:
            parts = {
                "function": cloudpickle.dumps(function),
                "function_copies": b"",
                "arguments": cloudpickle.dumps((args, {})),
                "argument_copies": b"",
            }
        finally:
            cloudpickle.unregister_pickle_by_value(module)
        payload = wire.encode_frame(described, parts)
        self.payload_sha256, self.payload_bytes = wire.digest(payload), len(payload)
        self.store.create_if_absent(object_names.payload(JOB, self.payload_sha256), payload)
        return self

    def environment(self, **changes: str) -> dict[str, str]:
        attempt = self.failed + self.ignored
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(sys.path),
            "KINETIC_STORE": self.store.uri,
            "KINETIC_JOB_ID": JOB,
            "KINETIC_PAYLOAD_SHA256": self.payload_sha256,
            "KINETIC_PAYLOAD_BYTES": str(self.payload_bytes),
            "KINETIC_OUTCOME_KEY": KEY.hex(),
            "KINETIC_FAILED_COUNT": str(self.failed),
            "KINETIC_IGNORED_COUNT": str(self.ignored),
            "KINETIC_INFRASTRUCTURE_RETRIES": "5",
            "KINETIC_POD_UID": f"uid-{attempt}",
            "KINETIC_RETRIES": str(self.retries),
            "KINETIC_WORK_DIR": str(self.folder / "work" / str(attempt)),
            "KINETIC_GRACE_SECONDS": "3",
            **changes,
        }

    def run(self, **changes: str) -> int:
        """Run an attempt to its end; its exit code, negative for a signal."""
        return self.start(**changes).wait(timeout=60)

    def start(self, kill_at: int | None = None, **changes: str) -> subprocess.Popen[bytes]:
        """Start an attempt, killed with SIGKILL at its n-th use of the store if asked."""
        program = f"import sys; from tests.runner.attempts import attempt; sys.exit(attempt({kill_at}))"
        log = (self.folder / "log").open("ab")
        with log:
            return subprocess.Popen(
                [sys.executable, "-u", "-c", program],
                env=self.environment(**changes),
                cwd=Path(__file__).parents[2],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def note(self, name: str, **told: Any) -> None:
        """Store a note as an attempt of this job would."""
        self.store.create_if_absent(name, encode_note(KEY, name, told))

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def outcome(self) -> Outcome:
        """The committed outcome, verified."""
        return read_outcome(self.store.read(object_names.result(JOB)), KEY, job_id=JOB)

    def is_committed(self) -> bool:
        return self.store.find(object_names.result(JOB)) is not None


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
    """Let the process of this one's fork of that number write no file beyond 16 KiB, or fork no process."""
    forks: list[int] = []

    def refuse(event: str, _: object) -> None:
        if event == "os.fork":
            raise BlockingIOError("no more processes")

    def begin() -> None:
        if len(forks) == fork and fault == "disk":
            resource.setrlimit(
                resource.RLIMIT_FSIZE, (16 << 10, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
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


def holding(began: Path, go: Path) -> Callable[[], str]:
    def work() -> str:
        began.touch()
        while not go.exists():
            time.sleep(0.01)
        return "value"

    return work


def appending(marker: Path) -> Callable[[], str]:
    def work() -> str:
        with marker.open("a") as stream:
            stream.write("x")
        return "value"

    return work

"""Running the real runner in a real process, on a payload made here, with faults on request."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle

from kinetic_core._runner import object_names, wire
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
        program = f"import sys; from tests.runner.faulty_runner import attempt; sys.exit(attempt({kill_at}))"
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

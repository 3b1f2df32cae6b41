"""The processes of one demo: found by what they carry in their environment, stopped without a survivor."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

RECORD = "processes.json"
"""In a demo's home: the process groups of its components."""


def free_ports(count: int) -> list[int]:
    """Ports of localhost that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def start(
    home: Path, name: str, arguments: list[str], environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start a process in a group of its own, its output in `components/{name}.log`, and write it down."""
    logs = home / "components"
    logs.mkdir(parents=True, exist_ok=True)
    with (logs / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(arguments, env=environment, stdout=log, stderr=log, start_new_session=True)
    record = home / RECORD
    groups = json.loads(record.read_text()) if record.exists() else {}
    record.write_text(json.dumps({**groups, name: process.pid}))
    return process


def stop_home(home: Path, patience: float = 5.0) -> None:
    """Stop every process of the demo in `home`; called from any process, any number of times.

    They are asked first. What is still there after `patience` seconds is killed.
    """
    asked: set[int] = set()
    deadline = time.monotonic() + patience
    while living := processes_of(home):
        overdue = time.monotonic() > deadline
        for pid in living if overdue else living - asked:
            _signal(pid, signal.SIGKILL if overdue else signal.SIGTERM)
        asked |= living
        time.sleep(0.1)
    (home / RECORD).unlink(missing_ok=True)


def processes_of(home: Path) -> set[int]:
    """Every living process of the demo: its components, the tasks they run, the jobs of those."""
    if sys.platform == "linux":
        marks = (f"AIRFLOW_HOME={home}", f"KINETIC_STORE=file://{home}", f"{home}/kinetic")
        inside = tuple(f"{mark}/" for mark in marks)
        pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())

        def is_mark(word: str) -> bool:
            # A job's agent names the folder of its store, and would start a runner that is killed again.
            is_store = word.startswith(f"{home}/") and word.endswith("/kinetic")
            return is_store or word in marks or word.startswith(inside)

        return {pid for pid in pids if any(map(is_mark, carried_by(pid)))}
    record = home / RECORD
    groups = set(json.loads(record.read_text()).values()) if record.exists() else set()
    listed = subprocess.run(["/bin/ps", "-axo", "pid=,pgid="], capture_output=True, text=True, check=True)
    pairs = [line.split() for line in listed.stdout.splitlines()]
    return {int(pid) for pid, group in pairs if int(group) in groups}


def carried_by(pid: int) -> set[str]:
    """A process's environment (`NAME=value`) and arguments; nothing if it has ended or is not ours."""
    process = Path("/proc", str(pid))
    try:
        if (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
            return set()
        words = (process / "environ").read_bytes() + b"\0" + (process / "cmdline").read_bytes()
    except OSError:
        return set()
    return {word.decode(errors="replace") for word in words.split(b"\0")}


def stop_on_signals(stop: Callable[[int], None]) -> None:
    """Call `stop(number)` on Ctrl-C, SIGTERM and a closed terminal."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: stop(received))


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # gone in between: what we wanted

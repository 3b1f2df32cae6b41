"""Clients that want one worker at the same moment, and clients of different versions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import object_names
from kinetic_core._runner.notes import decode_note
from kinetic_core.jobs.warm import Worker
from tests.conftest import wait_for
from tests.documents.pages import ROOT
from tests.warm.places import Call, Here
from tests.warm.test_calls import whoami


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Here]:
    made = Here(tmp_path)
    yield made
    made.close()


def once(folder: str, word: str) -> str:
    """Note this execution, the first of its word; return the worker that this runs on, "" for a pod's own."""
    with Path(folder, word).open("x") as stream:
        pid = os.getpid()
        for _ in ("process", "its runner", "worker or agent"):
            parent, began, _ = status(pid)
            stream.write(f"{pid} {began}\n")
            pid = parent
    return os.environ.get("KINETIC_ON_WORKER", "")


def status(pid: int) -> tuple[int, str, str]:
    """Return a process's parent, when it began, and its state."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), fields[19], fields[0]


def lives(pid: str, began: str) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        _, began_then, state = status(int(pid))
        return began_then == began and state != "Z"
    return False


class MeetingStore:
    """A store of a client that waits, before it gives a worker a call, until the other client does, too."""

    def __init__(self, store: Any, meeting: threading.Barrier) -> None:
        self._store, self._meeting = store, meeting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def create_if_absent(self, name: str, *content: Any) -> bool:
        if "/calls/" in name:
            self._meeting.wait(60)
        return bool(self._store.create_if_absent(name, *content))


def given(place: Here, workers: set[str]) -> dict[str, str]:
    """Return the workers that calls were given to: no two calls have the same number of one."""
    store, found = place.backend.store, {}
    for worker in workers:
        job, _ = place.backend.get("default", worker)
        key = Worker.of(job).key  # type: ignore[union-attr]  # it is one
        for info in store.list(object_names.calls_prefix(worker)):
            told = decode_note(key, info.name, store.read(info.name))
            found[told["environment"]["KINETIC_JOB_ID"]] = worker
    return found


@pytest.mark.parametrize("rounds", [8, 1000])
@pytest.mark.parametrize("moment", ["submitting", "giving"])
def test_of_two_clients_each_round_one_has_the_worker(
    place: Here, tmp_path: Path, moment: str, rounds: int
) -> None:
    """And no call runs twice. Clients that give at the same moment have found the same idle worker."""
    clients, meeting = (Here(tmp_path), Here(tmp_path)), threading.Barrier(2)
    first = place.submit(whoami, "first")
    first.value()
    if moment == "giving":
        for client in clients:
            client.backend.store = MeetingStore(client.backend.store, meeting)
    ran = tmp_path / "ran"
    ran.mkdir()

    def call(client: Here, word: str) -> tuple[Call, str]:
        if moment == "submitting":
            meeting.wait(60)
        made = client.submit(once, str(ran), word)
        return made, made.value()

    ran_on: dict[str, str] = {}
    workers: set[str] = set()
    with ThreadPoolExecutor(2) as threads:
        for number in range(rounds):
            calls = list(threads.map(call, clients, [f"{number} here", f"{number} there"]))
            places = [made.value() for made, _ in calls]
            assert places == [where for _, where in calls], "its value is that of the one execution"
            ran_on |= {made.job_id: where for made, where in calls}
            workers |= {made.worker for made, _ in calls}
            if moment == "giving":
                assert sorted(places) == ["", first.worker], "one has the worker, the other a pod"
    assert len(list(ran.iterdir())) == 2 * rounds
    told = given(place, workers | {first.worker})
    assert told.pop(first.job_id) == first.worker
    assert told == {job: where for job, where in ran_on.items() if where}
    assert len(told) < 2 * rounds, "they never wanted the same worker"
    for each in place.workers():
        place.backend.delete("default", each.job_id)
    processes = {tuple(line.split()) for file in ran.iterdir() for line in file.read_text().splitlines()}
    assert len(processes) > 4 * rounds
    wait_for(lambda: not [each for each in processes if lives(*each)])


OTHER_VERSION = """
import sys
from pathlib import Path
from tests.warm.places import Here
from tests.warm.test_calls import whoami
import kinetic_core
assert kinetic_core.__file__.startswith(sys.argv[2])
place = Here(Path(sys.argv[1]))
call = place.submit(whoami, "other")
print(call.worker, call.value()[0])
"""


def test_a_client_of_another_version_has_workers_of_its_own(place: Here, tmp_path: Path) -> None:
    """And the first one goes on using its own."""
    first = place.submit(whoami, "first")
    first.value()
    version = tmp_path / "version"
    for name in ("kinetic_core", "runner", "airflow_provider", "tests"):
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "airflow", "cluster", "examples")
        shutil.copytree(Path(ROOT, name), version / name, symlinks=True, ignore=ignored)
    with (version / "runner" / "worker.py").open("a") as stream:
        stream.write("\n# another version\n")
    done = subprocess.run(
        [sys.executable, "-c", OTHER_VERSION, str(tmp_path), str(version)],
        cwd=version,
        env={**os.environ, "PYTHONPATH": str(version)},
        capture_output=True,
        text=True,
        check=True,
    )
    worker, word = done.stdout.split()
    assert (word, worker != first.worker) == ("other", True)
    second = place.submit(whoami, "second")
    assert (second.worker, second.value()[0]) == (first.worker, "second")

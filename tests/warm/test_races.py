"""Clients that want one worker at the same moment, and clients of different versions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_core._runner import object_names
from tests.documents.pages import ROOT
from tests.warm.places import Call, Here
from tests.warm.test_calls import whoami


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Here]:
    made = Here(tmp_path)
    yield made
    made.close()


def noted(folder: str, word: str) -> str:
    """Note this execution."""
    with Path(folder, "executions").open("a") as stream:
        stream.write(f"{word}\n")
    return word


@pytest.mark.parametrize("rounds", [20, 1000])
def test_of_two_clients_each_round_one_has_the_worker(place: Here, tmp_path: Path, rounds: int) -> None:
    """And no call runs twice."""
    other = Here(tmp_path)
    worker = place.submit(whoami, "first")
    worker.value()
    barrier = threading.Barrier(2)
    calls: dict[str, Call] = {}
    shared = 0

    def client(here: Here, word: str) -> None:
        barrier.wait(60)
        calls[word] = here.submit(noted, str(tmp_path), word)
        calls[word].value()

    for number in range(rounds):
        words = f"{number} here", f"{number} there"
        threads = [
            threading.Thread(target=client, args=each) for each in zip((place, other), words, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [calls[word].value() for word in words] == list(words)
        shared += len({calls[word].worker for word in words}) == 1
    executions = Counter((tmp_path / "executions").read_text().splitlines())
    assert set(executions.values()) == {1}
    assert len(executions) == 2 * rounds
    given = [
        info.name
        for job in {call.worker for call in calls.values()}
        for info in place.backend.store.list(object_names.calls_prefix(job))
    ]
    assert len(given) <= 2 * rounds + 1
    assert shared, "they never wanted the same worker"


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

"""SIGKILL of client, worker, runner and child at every step of a warm call of this machine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.connections import Connections
from kinetic_core.errors import JobError
from kinetic_core.jobs.collect import read_outcome
from kinetic_core.jobs.reconcile import reconcile
from tests.conftest import wait_for
from tests.runner.attempts import JOB, Attempts, appending
from tests.warm.places import Call, Here
from tests.warm.test_calls import whoami
from tests.warm.test_worker import KEY_ID, WORKER_KEY, give, start

LATER = 1000.0
NAME = "job-00000000000000dd"
_STEPS = 23
"""Steps of a submission: one before and one after each use of the store and each creation."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Here]:
    made = Here(tmp_path)
    yield made
    made.close()


@contextlib.contextmanager
def noted(folder: str, call: str = "") -> Iterator[None]:
    """Note this execution of a call, and whether another one is alive."""
    with Path(folder, f"lock{call}").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mark = "once"
        except BlockingIOError:
            mark = "twice"
        with Path(folder, "executions").open("a") as stream:
            stream.write(f"{call} {mark}\n".lstrip())
        yield


def alone(folder: str) -> str:
    """Note this execution, and wait until told to go on."""
    with noted(folder):
        while not Path(folder, "go").exists():
            time.sleep(0.01)
    return "value"


def executions(folder: Path) -> list[str]:
    file = folder / "executions"
    return file.read_text().splitlines() if file.exists() else []


# The runner of the call


@pytest.mark.parametrize("step", range(9))
def test_a_runner_killed_at_any_step_runs_its_call_again(tmp_path: Path, step: int) -> None:
    """The worker starts the next attempt, unless the outcome was stored. One step is the child's."""
    attempts, ran, killed = Attempts(tmp_path), tmp_path / "runs", tmp_path / "killed"
    attempts.submit(appending(ran))
    worker = start(attempts, 1, KILLED_CALL=str(step), KILLED_ONCE=str(killed))
    give(attempts, KINETIC_RETRIES="1")
    assert worker.wait(timeout=60) == 0, "it has ended by itself"
    key = wire.call_key(WORKER_KEY, KEY_ID)
    outcome = read_outcome(attempts.store.read(object_names.result(JOB)), key, job_id=JOB)
    assert outcome.value_or_raise() == "value"
    assert ran.read_text() in ("x", "xx")
    if outcome.attempt == 0:
        assert ran.read_text() == "x"
    assert killed.exists() == (step < 8), "there are eight steps"


# The worker, its call's runner and the child with user code


def child_of(pid: int) -> int | None:
    return next(iter(children_of(pid)), None)


def children_of(pid: int) -> list[int]:
    """The children of a process that live, the oldest first."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(each) for each in found if status_of(each) != "Z"]
    return []


def status_of(pid: str) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def kill(who: str, worker: int) -> bool:
    """Kill the process if it is there; return whether it was. With `reuse=` a worker has a keeper, too."""
    pid: int | None = worker
    if who in ("keeper", "runner beside it", "process"):
        keeper, *runners = [*children_of(worker), None]
        pid = runners[0] if who == "runner beside it" and runners else keeper
        pid = child_of(pid) if who == "process" and pid is not None else pid
    else:
        for _ in range(("worker", "runner", "child").index(who)):
            pid = child_of(pid) if pid is not None else None
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return True


@pytest.mark.parametrize("moment", ["given", "claimed", "begun", "ended"])
@pytest.mark.parametrize("who", ["worker", "runner", "child"])
def test_a_kill_at_any_moment_leaves_one_execution(
    place: Here, tmp_path: Path, who: str, moment: str
) -> None:
    """And the call has an outcome, and the next one runs."""
    place.submit(whoami, "first").value()
    call = place.submit(alone, str(tmp_path))
    worker, store = place.runner_of(call.worker), place.backend.store
    if moment == "claimed":
        wait_for(lambda: store.find(object_names.claim(call.job_id, 0)))
    elif moment in ("begun", "ended"):
        wait_for(lambda: executions(tmp_path))
    if moment == "ended":
        (tmp_path / "go").touch()
        wait_for(lambda: store.find(object_names.result(call.job_id)))
    was_there = kill(who, worker)
    (tmp_path / "go").touch()
    try:
        assert call.value() == "value"
    except JobError:
        assert who == "child", "its death is the function's own"
        assert was_there
    assert "twice" not in executions(tmp_path)
    assert len(executions(tmp_path)) <= 2
    assert place.submit(whoami, "next").value()[0] == "next"


# The client


class Steps:
    """Kills this process at the n-th step."""

    def __init__(self, left: int) -> None:
        self._left, self._lock = left, threading.Lock()

    def take(self) -> None:
        with self._lock:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with a step before it and one after it."""

        def stepping(*arguments: Any, **options: Any) -> Any:
            self.take()
            value = function(*arguments, **options)
            self.take()
            return value

        return stepping


class SteppingStore:
    def __init__(self, store: Any, steps: Steps) -> None:
        self._store, self._steps = store, steps

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return self._steps.around(found) if callable(found) else found


class SteppingBackend(LocalBackend):
    """The backend of this machine, whose user dies."""

    def __init__(self, place: Here, steps: Steps) -> None:
        super().__init__(place.folder / "local", Connections(place.settings()))
        self.store: Any = SteppingStore(self.store, steps)
        self._steps = steps

    def of_origin(self, namespace: str, origin_id: str) -> Any:
        return self._steps.around(super().of_origin)(namespace, origin_id)

    def create(self, manifest: Mapping[str, Any]) -> bool:
        return bool(self._steps.around(super().create)(manifest))


def dying_client(folder: str, step: int) -> None:
    """What the client's process runs."""
    place = Here(Path(folder))
    place.backend = SteppingBackend(place, Steps(step))
    place.submit(alone, folder, job_id=NAME)
    print("submitted", flush=True)


def ended(place: Here, call: Call) -> bool:
    """Observe the call as somebody does who comes later."""
    claimed = place.backend.store.find(object_names.claim(call.job_id, 0)) is not None
    return reconcile(place.backend, call, None if claimed else time.time() + LATER).is_terminal


@pytest.mark.parametrize("step", range(_STEPS + 1))
def test_a_client_killed_at_any_step_can_be_followed(place: Here, tmp_path: Path, step: int) -> None:
    """An equal submission under the same id adopts what is there, and the call runs once."""
    place.submit(whoami, "first").value()
    program = f"from tests.warm.test_kills import dying_client; dying_client({str(tmp_path)!r}, {step})"
    client = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert client.returncode == (0 if step == _STEPS else -signal.SIGKILL), client.stderr
    (tmp_path / "go").touch()
    call = place.submit(alone, str(tmp_path), job_id=NAME)
    wait_for(lambda: ended(place, call))
    assert call.value() == "value"
    assert set(executions(tmp_path)) == {"once"}
    assert len(executions(tmp_path)) <= 2
    assert place.submit(whoami, "next").value()[0] == "next"


# All of them, at random


def worked(folder: str, number: int, seconds: float) -> int:
    """Note this execution of the call, and take some time."""
    with noted(folder, str(number)):
        time.sleep(seconds)
    return number


def working_client(folder: str, number: int, seconds: float, reuse: str | None) -> None:
    """What the process of a client runs that is killed."""
    job_id = f"job-{number:016x}"
    Here(Path(folder)).submit(worked, folder, number, seconds, warm=3, reuse=reuse, job_id=job_id)


def killed_client(folder: Path, number: int, seconds: float, reuse: str | None, after: float) -> None:
    arguments = f"{str(folder)!r}, {number}, {seconds}, {reuse!r}"
    program = f"from tests.warm.test_kills import working_client as run; run({arguments})"
    client = subprocess.Popen([sys.executable, "-c", program], cwd=Path(__file__).parents[2])
    with contextlib.suppress(subprocess.TimeoutExpired):
        client.wait(after)
    client.kill()
    client.wait()


def kill_of(place: Here, who: str, call: Call) -> bool:
    """Kill a process of the call's worker, if it is there; return whether it was."""
    try:
        worker = place.runner_of(call.worker)
    except (AssertionError, KeyError):
        return False  # it has not begun, or is gone
    return kill(who, worker)


WHOM = ("client", "worker", "runner", "child")
WHOM_OF_REUSE = ("client", "worker", "keeper", "runner beside it", "process")
FUNCTIONS_OWN = ("child", "keeper", "process")
"""Whose death looks like one that user code has caused itself."""


@pytest.mark.parametrize(
    ("kills", "reuse"), [(12, None), (500, None), (30, "process"), (30, "fork"), (500, "process")]
)
def test_kills_at_random_lose_and_repeat_nothing(
    place: Here, tmp_path: Path, kills: int, reuse: str | None
) -> None:
    """No call runs twice at a time, each has its outcome, and no worker outlives its idle time."""
    whom = WHOM if reuse is None else WHOM_OF_REUSE
    chance = random.Random(seed := random.randrange(1 << 32))
    print("seed", seed, flush=True)
    was_there: Counter[str] = Counter()
    failed: set[int] = set()
    for number in range(kills):
        who, seconds = chance.choice(whom), chance.uniform(0, 0.3)
        arguments, options = (str(tmp_path), number, seconds), {"warm": 3, "reuse": reuse}
        if who == "client":
            killed_client(tmp_path, number, seconds, reuse, chance.uniform(0.2, 1.5))
        else:
            call = place.submit(worked, *arguments, job_id=f"job-{number:016x}", **options)
            time.sleep(chance.uniform(0, 0.4))
            was_there[who] += kill_of(place, who, call)
        again = place.submit(worked, *arguments, job_id=f"job-{number:016x}", **options)
        wait_for(lambda again=again: ended(place, again), 120)  # type: ignore[misc]  # a lambda with a default
        try:
            assert again.value() == number
        except JobError:
            assert who in FUNCTIONS_OWN, f"the death of a {who} is not the function's own"
            failed.add(number)
    marks = executions(tmp_path)
    assert {line.split()[1] for line in marks} == {"once"}
    assert {int(line.split()[0]) for line in marks} | failed == set(range(kills))
    assert kills < 100 or min(was_there[who] for who in whom if who != "client") > 0
    wait_for(lambda: not place.workers(), 30)

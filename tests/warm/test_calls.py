"""Calls on workers, on this machine and on a cluster: one execution at a time, one outcome, whoever dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_core import JobStatus
from kinetic_core._runner import codec, object_names, wire
from kinetic_core.errors import JobCancelled, JobDeadlineExceeded, JobFailed, JobLost
from kinetic_core.jobs.garbage_collection import orphans, reap
from kinetic_core.jobs.listing import summaries
from kinetic_core.jobs.nudge import Nudge
from kinetic_core.jobs.observe import observe
from kinetic_core.jobs.reconcile import reconcile
from kinetic_core.jobs.signing import key_id_of, outcome_key
from kinetic_core.jobs.warm import Worker, start_worker
from tests.conftest import wait_for
from tests.warm.places import Cluster, Here, call_runner, kill_worker, waits_for_a_call

LATER = 1000.0


@pytest.fixture(params=["local", "gke"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Here]:
    here = Here(tmp_path) if request.param == "local" else Cluster(tmp_path)
    yield here
    here.close()


def whoami(word: str) -> tuple[str, int]:
    print("this is", word)
    return word, os.getpid()


def held(folder: str) -> str:
    """Note each execution and whether another was alive; wait until told to go on."""
    alive = Path(folder, "alive")
    mark = "twice" if alive.exists() else "once"
    alive.write_text(str(os.getpid()))  # before the note, after which a test may kill this
    with Path(folder, "executions").open("a") as stream:
        stream.write(f"{mark}\n")
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    print("it goes on")
    alive.unlink()
    return "value"


def begun(folder: Path, times: int = 1) -> bool:
    file = folder / "executions"
    return file.exists() and len(file.read_text().splitlines()) >= times


def test_a_second_call_runs_on_the_same_worker(place: Here) -> None:
    first = place.submit(whoami, "one")
    word, pid = first.value()
    second = place.submit(whoami, "two")
    assert second.worker == first.worker
    assert second.value()[0] == "two"
    assert (word, pid) != ("one", second.value()[1]), "each call has a process of its own"
    assert [each.logs() for each in (first, second)] == ["this is one\n", "this is two\n"]
    (worker,) = place.workers()
    assert (worker.job_id, worker.calls) == (first.worker, 2)
    listed = {job.job_id: (job.func_name, job.status) for job in summaries(place.backend)}
    assert listed[first.job_id] == ("whoami", JobStatus.SUCCEEDED)
    assert listed[worker.job_id] == ("warm worker", JobStatus.RUNNING)
    assert "function" in str(first.explain())


def test_a_started_worker_runs_the_first_call(place: Here, tmp_path: Path) -> None:
    """Whether or not it is there yet, when the call is made."""
    started = start_worker(place.pack(whoami, warm="1m"))
    first = place.submit(whoami, "first")
    assert first.worker == started.job_id
    assert first.value()[0] == "first"
    later = start_worker(place.pack(whoami, warm="1m", retries=2))
    wait_for(lambda: waits_for_a_call(place, later.job_id))
    one = place.submit(held, str(tmp_path))
    wait_for(lambda: begun(tmp_path))
    two = place.submit(whoami, "two")
    assert {one.worker, two.worker} == {started.job_id, later.job_id}
    assert two.value()[0] == "two"
    (tmp_path / "go").touch()
    assert one.value() == "value"


def test_a_started_worker_ends_without_any_call(place: Here) -> None:
    worker = start_worker(place.pack(whoami, warm="1s"))
    wait_for(lambda: place.workers() == [])
    call = place.submit(whoami, "late")
    assert call.worker != worker.job_id
    assert call.value()[0] == "late"


def variable() -> str | None:
    return os.environ.get("OF_THE_TASK")


def test_tasks_of_one_airflow_share_workers_and_no_variables(place: Here) -> None:
    def task(name: str, environment: dict[str, str], deployment: str = "one") -> Any:
        origin = json.dumps({"deployment": deployment, "task_id": name, "id": f"of-{name}"})
        return place.submit(variable, environment=environment, origin=origin)

    first = task("first", {"OF_THE_TASK": "first"})
    assert first.value() == "first"
    shutil.rmtree(place.cache)  # as on another machine of this Airflow
    second = task("second", {})
    assert second.worker == first.worker
    assert second.value() is None
    other = task("third", {"OF_THE_TASK": "third"}, "another")
    assert other.worker != first.worker
    script = place.submit(variable)
    assert script.worker not in (first.worker, other.worker)
    assert (other.value(), script.value()) == ("third", None)


def test_a_module_of_the_project_wins_over_the_workers(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    (root / "uuid.py").write_text("class UUID: pass\nuuid4 = UUID")
    source = "def file():\n    import uuid\n    return uuid.__file__\n"
    (root / "mine.py").write_text(source)
    mine: dict[str, Any] = {"__name__": "mine"}
    exec(compile(source, root / "mine.py", "exec"), mine)
    place = Here(tmp_path, root)
    assert place.submit(mine["file"]).value().endswith("workspace/uuid.py")
    place.close()


def test_a_worker_tells_the_client_that_its_call_has_ended(tmp_path: Path) -> None:
    place = Here(tmp_path)
    place.submit(whoami, "first").value()
    handle = place.submit(held, str(tmp_path))
    told = threading.Event()
    found = find_worker(place, handle.worker)
    nudge = Nudge(place.backend, "default", found.job_id, found.key, told.set)
    nudge.open()
    wait_for(lambda: begun(tmp_path))
    (tmp_path / "go").touch()
    assert told.wait(60)
    nudge.close()
    place.close()


def find_worker(place: Here, job_id: str) -> Worker:
    record = place.backend.get("default", job_id)
    worker = Worker.of(record[0])
    assert worker is not None
    return worker


def test_cancel_ends_this_call_and_the_worker_goes_on(place: Here, tmp_path: Path) -> None:
    handle = place.submit(held, str(tmp_path))
    wait_for(lambda: begun(tmp_path))
    assert handle.observe().reason == "OnWorker"
    handle.cancel()
    assert handle.status() is JobStatus.CANCELLED
    with pytest.raises(JobCancelled):
        handle.value()
    after = place.submit(whoami, "next")
    assert after.worker == handle.worker
    assert after.value()[0] == "next"


def test_the_timeout_of_a_call_ends_it_alone(place: Here, tmp_path: Path) -> None:
    warm = place.submit(whoami, "first")
    warm.value()
    handle = place.submit(held, str(tmp_path), timeout=2)
    assert handle.worker == warm.worker
    with pytest.raises(JobDeadlineExceeded, match="2 s after it was submitted"):
        handle.value()
    wait_for(lambda: waits_for_a_call(place, handle.worker))


def fails(folder: str) -> str:
    """Fail the first time."""
    if Path(folder, "failed").exists():
        return "second"
    Path(folder, "failed").touch()
    raise ValueError("the first time")


def test_retries_of_a_call_run_on_its_worker(place: Here, tmp_path: Path) -> None:
    handle = place.submit(fails, str(tmp_path), retries=1)
    assert handle.value() == "second"
    assert handle.observe().attempt == 1
    (tmp_path / "failed").unlink()
    with pytest.raises((JobFailed, ValueError), match="the first time"):
        place.submit(fails, str(tmp_path)).value()


def test_a_call_whose_runner_is_killed_runs_again_once(place: Here, tmp_path: Path) -> None:
    handle = place.submit(held, str(tmp_path))
    wait_for(lambda: begun(tmp_path))
    (tmp_path / "alive").unlink()
    os.kill(call_runner(place.runner_of(handle.worker)), signal.SIGKILL)
    wait_for(lambda: begun(tmp_path, 2))
    (tmp_path / "go").touch()
    assert handle.value() == "value"
    assert (tmp_path / "executions").read_text().splitlines() == ["once", "once"]


def test_a_call_whose_worker_is_killed_gets_a_pod(place: Here, tmp_path: Path) -> None:
    handle = place.submit(held, str(tmp_path))
    wait_for(lambda: begun(tmp_path))
    kill_worker(place.runner_of(handle.worker), tmp_path / "alive")
    (tmp_path / "go").touch()
    assert handle.value() == "value"
    assert (tmp_path / "executions").read_text().splitlines() == ["once", "once"]
    assert handle.observe().attempt == 1
    if place.name == "local":  # the fake cluster's nodes have no logs
        assert handle.logs() == "it goes on\n"
    assert place.workers() == []


def test_without_a_retry_a_lost_worker_is_the_end(place: Here, tmp_path: Path) -> None:
    handle = place.submit(held, str(tmp_path), infrastructure_retries=0)
    wait_for(lambda: begun(tmp_path))
    os.kill(place.runner_of(handle.worker), signal.SIGKILL)
    with pytest.raises(JobLost, match="infrastructure_retries=0"):
        handle.value()
    assert handle.status() is JobStatus.FAILED
    assert (tmp_path / "executions").read_text().splitlines() == ["once"]


def test_of_two_clients_one_has_the_worker(place: Here) -> None:
    first = place.submit(whoami, "first")
    first.value()
    handles: list[Any] = [None] * 4
    barrier = threading.Barrier(4)

    def client(number: int) -> None:
        barrier.wait()
        handles[number] = place.submit(whoami, str(number))

    threads = [threading.Thread(target=client, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [handle.value()[0] for handle in handles] == ["0", "1", "2", "3"]
    given = list(place.backend.store.list(object_names.calls_prefix(first.worker)))
    assert len(given) == len({info.name for info in given})


def has_a_signal(pid: int) -> bool:
    """Whether a process that is stopped has a signal to come."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return any(int(line.split()[1], 16) for line in lines if line.startswith("ShdPnd"))


def test_a_worker_that_does_not_begin_is_ended_first(place: Here, tmp_path: Path) -> None:
    first = place.submit(whoami, "first")
    first.value()
    worker = place.runner_of(first.worker)
    os.kill(worker, signal.SIGSTOP)  # as one that the network has cut off
    try:
        handle = place.submit(held, str(tmp_path))
        assert handle.worker == first.worker
        observer = threading.Thread(target=lambda: reconcile(place.backend, handle, time.time() + LATER))
        observer.start()
        wait_for(lambda: has_a_signal(worker))
        assert reconcile(place.backend, handle).reason in ("OnWorker", "OwnPod")
        assert not begun(tmp_path), "it may still live"
    finally:
        os.kill(worker, signal.SIGCONT)
    wait_for(lambda: reconcile(place.backend, handle) and begun(tmp_path))
    observer.join()
    (tmp_path / "go").touch()
    assert handle.value() == "value"
    assert (tmp_path / "executions").read_text().splitlines() == ["once"]


def test_reap_ends_a_worker_that_does_not_end_by_itself(tmp_path: Path) -> None:
    place = Here(tmp_path)
    waiting = place.submit(whoami, "waits on")
    waiting.value()
    handle = place.submit(held, str(tmp_path), warm="1s", memory="256Mi")
    wait_for(lambda: begun(tmp_path))
    worker = place.runner_of(handle.worker)
    os.kill(worker, signal.SIGSTOP)
    try:
        assert orphans(place.backend, "default", 0) == [], "it runs a call"
        (tmp_path / "go").touch()
        assert handle.value() == "value"
        wait_for(lambda: orphans(place.backend, "default", 0))
        assert orphans(place.backend, "default") == [], "an hour later"
        (found,) = orphans(place.backend, "default", 0)
        assert (found.job_id, "longer than its 1 s" in found.why) == (handle.worker, True)
        ending = threading.Thread(target=lambda: reap(place.backend, found))
        ending.start()
        wait_for(lambda: has_a_signal(worker))
    finally:
        os.kill(worker, signal.SIGCONT)
    ending.join()
    wait_for(lambda: [each.job_id for each in place.workers()] == [waiting.worker])
    place.close()


def test_a_worker_ends_when_no_call_has_come(place: Here) -> None:
    handle = place.submit(whoami, "only", warm="1s")
    handle.value()
    wait_for(lambda: place.workers() == [])
    after = place.submit(whoami, "another", warm="1s")
    assert after.worker != handle.worker
    assert after.value()[0] == "another"


@pytest.mark.attack
def test_a_planted_call_is_passed_over(place: Here) -> None:
    first = place.submit(whoami, "first")
    first.value()
    place.backend.store.create_if_absent(object_names.call(first.worker, 1), b'{"environment": {}}')
    assert place.submit(whoami, "second").value()[0] == "second"


@pytest.mark.attack
def test_a_planted_outcome_makes_no_worker_idle(place: Here, tmp_path: Path) -> None:
    """Else a client would give it a call, and observers would end the worker that does not begin with it."""
    running = place.submit(held, str(tmp_path))
    wait_for(lambda: begun(tmp_path))
    plant_outcome(place, running.job_id)
    (worker,) = place.workers()
    assert (worker.job_id, worker.is_idle) == (running.worker, False)
    other = place.submit(whoami, "other")
    assert other.worker != running.worker
    assert other.value()[0] == "other"
    (tmp_path / "go").touch()
    assert running.value() == "value"
    assert (tmp_path / "executions").read_text().splitlines() == ["once"]


@pytest.mark.attack
def test_a_copied_end_of_an_attempt_makes_no_worker_idle(place: Here, tmp_path: Path) -> None:
    """What an attempt of the call has signed for its own name is copied to that of the call's outcome."""
    running = place.submit(held, str(tmp_path))
    wait_for(lambda: begun(tmp_path))
    found = place.backend.get("default", running.job_id)
    assert found is not None
    end = object_names.attempt_outcome(running.job_id, 0)
    plant_outcome(place, running.job_id, outcome_key(found[0]), key_id=key_id_of(found[0]), object=end)
    (worker,) = place.workers()
    assert (worker.job_id, worker.is_idle) == (running.worker, False)
    (tmp_path / "go").touch()
    assert running.value() == "value"


@pytest.mark.attack
def test_what_is_planted_keeps_no_call_alive(place: Here, tmp_path: Path) -> None:
    """Neither an outcome nor a note where the one is to be that ends it."""
    handle = place.submit(held, str(tmp_path))
    wait_for(lambda: begun(tmp_path))
    plant_outcome(place, handle.job_id)
    place.backend.store.create_if_absent(object_names.end_call(handle.job_id), b'{"signature": ""}')
    runner = call_runner(place.runner_of(handle.worker))
    handle.cancel()
    assert not Path(f"/proc/{runner}").exists()
    assert handle.status() is JobStatus.CANCELLED


@pytest.mark.attack
def test_a_planted_claim_is_no_beginning(place: Here, tmp_path: Path) -> None:
    """The call waits as before, and gets a pod when its worker dies, without spending a restart."""
    first = place.submit(whoami, "first")
    first.value()
    worker = place.runner_of(first.worker)
    os.kill(worker, signal.SIGSTOP)
    handle = place.submit(whoami, "second", infrastructure_retries=0)
    before = observe(place.backend, handle)
    for number in range(3):
        place.backend.store.create_if_absent(object_names.claim(handle.job_id, number), b"{}")
    assert (before.status, before.attempt) == (JobStatus.PENDING, 0)
    assert observe(place.backend, handle) == before
    os.kill(worker, signal.SIGKILL)
    assert handle.value()[0] == "second"


@pytest.mark.attack
def test_with_a_planted_claim_cancelling_need_not_wait(place: Here) -> None:
    first = place.submit(whoami, "first")
    first.value()
    worker = place.runner_of(first.worker)
    os.kill(worker, signal.SIGSTOP)
    try:
        handle = place.submit(whoami, "second")
        place.backend.store.create_if_absent(object_names.claim(handle.job_id, 0), b"{}")
        handle.cancel()
        assert handle.status() is JobStatus.CANCELLED
    finally:
        os.kill(worker, signal.SIGCONT)


def plant_outcome(place: Here, job_id: str, key: bytes | None = None, **header: Any) -> None:
    """As anybody can who may write to the store and knows the id; with a key, what its owner has signed."""
    told = {"protocol": wire.PROTOCOL, "job_id": job_id, "attempt": 0, "state": "succeeded", "codec": "typed"}
    frame = wire.encode_frame({**told, **header}, codec.encode("owned"), key)
    place.backend.store.create_if_absent(object_names.result(job_id), frame, {wire.STATE: "succeeded"})


def test_an_equal_call_by_id_is_adopted(tmp_path: Path) -> None:
    name, place = "job-00000000000000aa", Here(tmp_path)
    handles = [place.submit(whoami, "same", job_id=name) for _ in range(2)]
    assert handles[0].worker == handles[1].worker
    assert handles[0].value() == handles[1].value()
    place.close()


def test_who_starts_a_pod_and_dies_is_followed_by_another(tmp_path: Path) -> None:
    place = Here(tmp_path)
    handle = place.submit(whoami, "one", warm="1s")
    handle.value()
    wait_for(lambda: place.workers() == [])
    late = place.submit(held, str(tmp_path), warm="1s")
    wait_for(lambda: begun(tmp_path))
    late.cancel()
    record = tmp_path / "local" / "cluster" / "default" / f"{late.job_id}.json"
    told = json.loads(record.read_text())
    told["job"]["spec"]["parallelism"] = 1  # written by who gives it a pod, just before its agent is started
    told["job"]["status"] = {}
    record.write_text(json.dumps(told))
    reconcile(place.backend, late)
    wait_for(lambda: "agent" in json.loads(record.read_text()))
    place.close()

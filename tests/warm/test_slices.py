"""Calls on workers of two hosts: all hosts run each call, begin it together, and go on or end together."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core._runner import object_names
from kinetic_core._runner.processes import below
from kinetic_core.errors import InvalidRequest, JobCancelled, JobDeadlineExceeded, JobError, JobFailed
from kinetic_core.jobs.facts import worker_state
from kinetic_core.jobs.observe import find, observe
from kinetic_core.jobs.reconcile import reconcile
from kinetic_core.options import RunOptions
from tests.conftest import wait_for
from tests.runner.attempts import Attempts
from tests.warm.places import Call, Cluster, Here, call_runner, waits_for_a_call
from tests.warm.test_kills import kill, noted
from tests.warm.test_worker import WORKER
from tests.warm.test_worker import start as start_worker

HOSTS = 2
counted: list[int] = []
"""Stands for what a process knows, such as a device."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def on_slice(place: Here, function: Any, *args: Any, **options: Any) -> Call:
    return place.submit(function, *args, accelerator="tpu-v5p-8", **options)


def host() -> int:
    return int(os.environ["KINETIC_HOST_INDEX"])


def leave(folder: str, text: object) -> None:
    """Note what this host has to say."""
    with Path(folder, f"host-{host()}").open("a") as stream:
        stream.write(f"{text}\n")


def left(folder: Path) -> list[list[str]]:
    """What each host has noted."""
    files = [folder / f"host-{each}" for each in range(HOSTS)]
    return [file.read_text().splitlines() if file.exists() else [] for file in files]


def meet(folder: str) -> str:
    """Note who this host is, and the addresses of all."""
    ids = {os.environ[name] for name in ("TPU_WORKER_ID", "JAX_PROCESS_ID", "KINETIC_HOST_INDEX")}
    leave(folder, f"{ids.pop()} {os.environ['KINETIC_POD_UID']} {os.environ['TPU_WORKER_HOSTNAMES']}")
    print("met")
    return "value of host 0" if not ids and host() == 0 else "no value"


def alone(folder: str) -> str:
    """Note each execution of this host, and wait until told to go on."""
    with noted(folder, f"-{host()}"):
        leave(folder, "begun")
        while not Path(folder, "go").exists():
            time.sleep(0.01)
    return "value"


def begun(folder: Path, times: int = 1) -> bool:
    return all(len(each) >= times for each in left(folder))


def executions(folder: Path) -> list[str]:
    return sorted((folder / "executions").read_text().splitlines())


def test_all_hosts_run_each_call(place: Cluster, tmp_path: Path) -> None:
    calls = []
    for _ in range(2):
        calls.append(on_slice(place, meet, str(tmp_path)))
        assert calls[-1].value() == "value of host 0"
    assert calls[0].worker == calls[1].worker
    name = f"kinetic-{calls[0].worker}"
    for number, told in enumerate(left(tmp_path)):
        first, second = (each.split() for each in told)
        assert first == second, "the same pod"
        assert first[0] == str(number)
        assert first[2] == f"{name}-0.kinetic-hosts,{name}-1.kinetic-hosts", "addresses of the pods"
    said = [line for line in calls[1].logs().splitlines() if "TPU device" not in line]
    assert said == ["[host 0] met", "[host 1] met"]
    assert len(place.hosts) == HOSTS


def test_it_ends_by_itself_and_all_hosts_with_it(place: Cluster, tmp_path: Path) -> None:
    call = on_slice(place, meet, str(tmp_path), warm=2)
    call.value()
    wait_for(lambda: place.workers() == [])
    assert [place.hosts[call.worker, each].wait(timeout=30) for each in range(HOSTS)] == [0, 0]
    reference = find(place.backend, call.worker)
    assert reference is not None
    assert observe(place.backend, reference).status is JobStatus.SUCCEEDED


def count(folder: str, error: int | None = None) -> None:
    """Note how many calls this process has run; one host may fail."""
    counted.append(1)
    leave(folder, len(counted))
    if error == host():
        raise ValueError("no")


def test_hosts_keep_their_processes_together(place: Cluster, tmp_path: Path) -> None:
    def call() -> None:
        on_slice(place, count, str(tmp_path), reuse="process").value()

    call()
    call()
    assert left(tmp_path) == [["1", "2"], ["1", "2"]]
    worker = place.workers()[0].job_id
    os.kill(kept_process(place, worker, 1), signal.SIGKILL)
    call()
    assert left(tmp_path) == [["1", "2", "1"], ["1", "2", "1"]], "none goes on without the other"
    call()
    assert [each[-1] for each in left(tmp_path)] == ["2", "2"]
    assert [each.job_id for each in place.workers()] == [worker]


def fails_together(folder: str) -> None:
    """Fail on each host, once all have begun."""
    leave(folder, os.getpid())
    while not begun(Path(folder)):
        time.sleep(0.01)
    raise ValueError("on each host")


def alarm(folder: str) -> None:
    """Note the process, and the seconds after which it is killed."""
    leave(folder, os.getpid())
    leave(folder, signal.getitimer(signal.ITIMER_REAL)[0])


def test_no_alarm_of_a_failed_call_ends_the_next(place: Cluster, tmp_path: Path) -> None:
    with pytest.raises((JobFailed, ValueError), match="on each host"):
        on_slice(place, fails_together, str(tmp_path), reuse="process").value()
    on_slice(place, alarm, str(tmp_path), reuse="process").value()
    for process, same, seconds in left(tmp_path):
        assert (same, seconds) == (process, "0.0")


def kept_process(place: Cluster, worker: str, number: int) -> int:
    """The process that runs the calls of one host: the only child of its keeper."""
    runner = place.hosts[worker, number].pid
    wait_for(lambda: len(below(runner)) == 2)  # once the last call's runner has ended
    keeper = call_runner(runner)
    (process,) = set(below(runner)) - {keeper}
    return process


def test_calls_of_hosts_can_have_forks(place: Cluster, tmp_path: Path) -> None:
    for _ in range(2):
        on_slice(place, count, str(tmp_path), reuse="fork").value()
    assert left(tmp_path) == [["1", "1"], ["1", "1"]]


def sleeps(folder: str) -> None:
    leave(folder, "begun")
    time.sleep(3600)


@pytest.mark.parametrize("reuse", [None, "process"])
def test_cancel_and_timeout_end_one_call(place: Cluster, tmp_path: Path, reuse: str | None) -> None:
    call = on_slice(place, sleeps, str(tmp_path), reuse=reuse)
    wait_for(lambda: begun(tmp_path))
    call.cancel()
    with pytest.raises(JobCancelled):
        call.value()
    late = on_slice(place, sleeps, str(tmp_path), timeout=2, reuse=reuse)
    assert late.worker == call.worker
    with pytest.raises(JobDeadlineExceeded):
        late.value()
    after = on_slice(place, meet, str(tmp_path), reuse=reuse)
    assert (after.worker, after.value()) == (call.worker, "value of host 0")


def leaves_slowly(folder: str) -> None:
    """Take a second, on host 1, to end when told to."""
    leave(folder, "begun")
    try:
        time.sleep(3600)
    finally:
        time.sleep(host())
        leave(folder, "left")


def test_cancel_returns_when_no_host_runs_the_call(place: Cluster, tmp_path: Path) -> None:
    call = on_slice(place, leaves_slowly, str(tmp_path))
    wait_for(lambda: begun(tmp_path))
    call.cancel()
    assert left(tmp_path) == [["begun", "left"]] * HOSTS


def fails_once(folder: str) -> str:
    """Fail on host 1 the first time; host 0 waits for it."""
    leave(folder, "begun")
    if host() == 1 and not Path(folder, "failed").exists():
        Path(folder, "failed").touch()
        raise ValueError("the first time")
    while len(left(Path(folder))[1]) < HOSTS:
        time.sleep(0.01)
    return "second"


def test_one_hosts_failure_is_an_attempt_of_all(place: Cluster, tmp_path: Path) -> None:
    call = on_slice(place, fails_once, str(tmp_path), retries=1)
    assert call.value() == "second"
    assert left(tmp_path) == [["begun"] * 2] * 2
    (tmp_path / "failed").unlink()
    with pytest.raises((JobFailed, ValueError), match="the first time"):
        on_slice(place, fails_once, str(tmp_path)).value()
    wait_for(lambda: waits_for_a_call(place, call.worker))


@pytest.mark.parametrize("number", range(HOSTS))
def test_a_call_whose_runner_is_killed_runs_again(place: Cluster, tmp_path: Path, number: int) -> None:
    call = on_slice(place, alone, str(tmp_path))
    wait_for(lambda: begun(tmp_path))
    os.kill(call_runner(place.hosts[call.worker, number].pid), signal.SIGKILL)
    wait_for(lambda: begun(tmp_path, 2))
    (tmp_path / "go").touch()
    assert call.value() == "value"
    assert executions(tmp_path) == ["-0 once"] * 2 + ["-1 once"] * 2
    assert len(place.hosts) == HOSTS, "no pod was needed"


@pytest.mark.parametrize("number", range(HOSTS))
def test_a_call_whose_worker_loses_a_host_gets_pods(place: Cluster, tmp_path: Path, number: int) -> None:
    call = on_slice(place, alone, str(tmp_path))
    wait_for(lambda: begun(tmp_path))
    place.hosts[call.worker, number].kill()
    wait_for(lambda: not reconcile(place.backend, call).is_terminal and begun(tmp_path, 2))
    (tmp_path / "go").touch()
    assert call.value() == "value"
    assert executions(tmp_path) == ["-0 once"] * 2 + ["-1 once"] * 2
    assert {key for key in place.hosts if key[0] == call.job_id} == {(call.job_id, 0), (call.job_id, 1)}
    assert place.workers() == []


def test_a_worker_whose_host_is_told_to_leave_ends(place: Cluster, tmp_path: Path) -> None:
    call = on_slice(place, meet, str(tmp_path))
    call.value()
    place.hosts[call.worker, 1].terminate()
    assert place.hosts[call.worker, 1].wait(timeout=30) != 0
    assert place.hosts[call.worker, 0].wait(timeout=30) != 0, "Kubernetes ends it with its Job"
    assert on_slice(place, meet, str(tmp_path)).worker != call.worker


def test_a_host_that_hangs_ends_the_worker(place: Cluster, tmp_path: Path) -> None:
    """A minute after it has not come to a call; the call goes on in pods of its own."""
    warm = on_slice(place, meet, str(tmp_path))
    warm.value()
    hanging = place.hosts[warm.worker, 1]
    hanging.send_signal(signal.SIGSTOP)
    call = on_slice(place, meet, str(tmp_path))
    assert call.worker == warm.worker
    assert place.hosts[warm.worker, 0].wait(timeout=180) != 0
    assert [len(each) for each in left(tmp_path)] == [1, 1], "its function has not run"
    hanging.kill()  # as its node does, after the grace of its pod
    assert call.value() == "value of host 0"
    assert {key for key in place.hosts if key[0] == call.job_id} == {(call.job_id, 0), (call.job_id, 1)}


def test_a_worker_whose_hosts_never_come_can_be_ended(tmp_path: Path) -> None:
    attempts = Attempts(tmp_path).submit(meet, str(tmp_path))
    worker = start_worker(attempts, KINETIC_HOST_COUNT="2", KINETIC_HOST_INDEX="0")
    checked_in = object_names.rendezvous(WORKER, 0, "host-0")
    wait_for(lambda: attempts.store.find(checked_in) is not None)
    worker.terminate()
    assert worker.wait(timeout=60) != 0
    assert not list(attempts.store.list(object_names.calls_prefix(WORKER))), "it has taken no call"


@pytest.mark.attack
def test_a_planted_meeting_ends_the_call_alone(place: Cluster, tmp_path: Path) -> None:
    warm = on_slice(place, meet, str(tmp_path))
    warm.value()
    job_id = "job-00000000000000dd"
    place.backend.store.create_if_absent(object_names.rendezvous(job_id, 0, "start"), b"{}")
    call = on_slice(place, meet, str(tmp_path), job_id=job_id)
    assert call.worker == warm.worker
    with pytest.raises(kinetic_core.errors.JobError, match="is not what this job has stored"):
        call.value()
    assert [len(each) for each in left(tmp_path)] == [1, 1], "its function did not run"
    assert on_slice(place, meet, str(tmp_path)).value() == "value of host 0"


def test_it_has_begun_when_its_last_host_has(place: Cluster, tmp_path: Path) -> None:
    """Or a call would be late on a worker whose hosts have started a minute apart."""
    call = on_slice(place, meet, str(tmp_path))
    call.value()
    job, pods = place.backend.get("default", call.worker)
    starts = ["2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"]
    for pod, start in zip(pods, starts, strict=True):
        pod["status"]["containerStatuses"][0]["state"] = {"running": {"startedAt": start}}

    class Stopped:
        def get(self, *_: str) -> Any:
            return job, pods

    call_job, _ = place.backend.get("default", call.job_id)
    began = [
        worker_state(Stopped(), "default", call_job).seen.started_at  # type: ignore[arg-type]
        for pods in (pods, pods[::-1])
    ]
    assert began == [1767225660.0] * 2


def test_here_all_hosts_are_one_process(tmp_path: Path) -> None:
    place = Here(tmp_path)
    try:
        first = on_slice(place, os.getpid, reuse="process")
        process = first.value()
        second = on_slice(place, os.getpid, reuse="process")
        assert (second.worker, second.value()) == (first.worker, process)
    finally:
        place.close()


def test_a_map_on_hosts_is_refused(tmp_path: Path) -> None:
    function = kinetic_core.run(accelerator="tpu-v5p-8", backend="local", warm="1m")(meet)
    with pytest.raises(InvalidRequest, match="warm= does not go with tpu-v5p-8, which has several hosts"):
        function.run_async_map([1, 2], max_concurrent=1)


def test_a_set_is_no_worker() -> None:
    with pytest.raises(InvalidRequest, match="warm= does not go with backend='pathways'"):
        RunOptions.checked("tpu-v5p-8", warm="1m", backend="pathways")


WHOM = {
    None: ("worker", "runner", "child"),
    "process": ("worker", "keeper", "runner beside it", "process"),
}
"""Processes of a host that are killed, by what its calls share."""
FUNCTIONS_OWN = ("child", "keeper", "process")
"""Whose death looks like one that user code has caused itself."""


def worked(folder: str, number: int, seconds: float) -> int:
    """Note this host's execution of the call, and take some time."""
    with noted(folder, f"{number}-{host()}"):
        time.sleep(seconds)
    return number


@pytest.mark.parametrize("reuse", [None, "process"])
@pytest.mark.parametrize("kills", [60])
def test_kills_of_hosts_lose_and_repeat_nothing(
    place: Cluster, tmp_path: Path, kills: int, reuse: str | None
) -> None:
    """No host runs a call twice at a time, and each call has its outcome."""
    chance = random.Random(seed := random.randrange(1 << 32))
    print("seed", seed, flush=True)
    failed, was_there = set(), 0
    for number in range(kills):
        who, seconds = chance.choice(WHOM[reuse]), chance.uniform(0, 0.5)
        call = on_slice(place, worked, str(tmp_path), number, seconds, warm=5, reuse=reuse)
        time.sleep(chance.uniform(0, 0.8))
        container = place.hosts.get((call.worker, chance.randrange(HOSTS)))
        was_there += container is not None and kill(who, container.pid)
        try:
            assert call.value() == number
        except JobError:
            assert who in FUNCTIONS_OWN, f"the death of a {who} is not the function's own"
            failed.add(number)
    assert was_there > kills / 4
    marks = executions(tmp_path)
    assert {line.split()[1] for line in marks} == {"once"}
    done = {line.split()[0] for line in marks}
    assert done >= {f"{n}-{each}" for n in range(kills) if n not in failed for each in range(HOSTS)}
    wait_for(lambda: not place.workers(), 60)


def test_a_setting_makes_no_set_of_a_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KINETIC_BACKEND", "pathways")
    monkeypatch.setenv("KINETIC_BUCKET", "bucket")
    monkeypatch.setenv("KINETIC_KUBECONFIG", str(tmp_path / "none"))
    function = kinetic_core.run(accelerator="tpu-v5p-8", warm="1m")(meet)
    with pytest.raises(InvalidRequest, match="warm= does not go with KINETIC_BACKEND=pathways"):
        function(str(tmp_path))

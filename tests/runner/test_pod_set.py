"""Hosts in pods of a LeaderWorkerSet: they stay after the end, and no start runs again what has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_core._runner import object_names, wire
from tests.conftest import wait_for
from tests.runner.attempts import JOB, Attempts


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Attempts]:
    attempts = Attempts(tmp_path, retries=1)
    yield attempts
    for host in _started:
        kill(host)
    _started.clear()


_started: list[subprocess.Popen[bytes]] = []


def start(group: Attempts, host: int, pod: int = 0, hosts: int = 2, **more: str) -> subprocess.Popen[bytes]:
    """A container of the `pod`-th pod of a host; the same pod again is a restarted container."""
    started = group.start(
        KINETIC_SET="kinetic-set",
        KINETIC_HOST_COUNT=str(hosts),
        KINETIC_HOST_INDEX=str(host),
        KINETIC_POD_UID=f"uid-{host}-{pod}",
        KINETIC_FAILED_COUNT="",
        KINETIC_IGNORED_COUNT="",
        KINETIC_INFRASTRUCTURE_RETRIES="1",
        KINETIC_WORK_DIR=str(group.folder / "work" / f"{host}-{pod}"),
        **more,
    )
    _started.append(started)
    return started


def kill(host: subprocess.Popen[bytes]) -> None:
    """As a container is killed: with user code."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(host.pid, signal.SIGKILL)
    host.wait()


def stay(group: Attempts, *hosts: subprocess.Popen[bytes]) -> None:
    """Each has ended its work and not its process, until it is told to."""
    wait_for(lambda: group.log.count("this pod stays") == len(hosts))
    for host in hosts:
        assert host.poll() is None
        host.send_signal(signal.SIGTERM)
        assert host.wait(timeout=60) == 0


def codes(*hosts: subprocess.Popen[bytes]) -> list[int]:
    return [host.wait(timeout=60) for host in hosts]


def told(group: Attempts, generation: int, name: str) -> bool:
    return group.store.find(object_names.rendezvous(JOB, generation, name)) is not None


def note(folder: str) -> str:
    import os
    from pathlib import Path

    with Path(folder, "ran").open("a") as stream:
        print(os.environ["KINETIC_HOST_INDEX"], os.environ["KINETIC_IGNORED_COUNT"], file=stream)
    return "value"


def fail_once(folder: str) -> str:
    import os

    print("attempt", os.environ["KINETIC_FAILED_COUNT"])
    if os.environ["KINETIC_FAILED_COUNT"] == "0":
        raise ValueError("the first time")
    return f"after {os.environ['KINETIC_FAILED_COUNT']}"


def rest(folder: str) -> None:
    import os
    import time
    from pathlib import Path

    Path(folder, f"began-{os.environ['KINETIC_HOST_INDEX']}-{os.environ['KINETIC_FAILED_COUNT']}").touch()
    time.sleep(60)


@pytest.mark.promise("batches: Run-once guard: the runner parks, the function never runs twice")
def test_after_the_end_every_start_stays_and_runs_nothing(group: Attempts, tmp_path: Path) -> None:
    group.submit(note, str(tmp_path))
    hosts = [start(group, 0), start(group, 1)]
    wait_for(group.is_committed)
    again = [start(group, 0, 1), start(group, 1, 0)]  # a new pod, a restarted container
    wait_for(lambda: group.log.count("committed already") == 2)
    stay(group, *hosts, *again)
    assert sorted((tmp_path / "ran").read_text().splitlines()) == ["0 0", "1 0"]
    assert group.outcome().value_or_raise() == "value"


def test_a_retry_begins_in_new_pods_only(group: Attempts, tmp_path: Path) -> None:
    group.submit(fail_once, str(tmp_path))
    assert codes(start(group, 0), start(group, 1)) == [wire.EXIT_REGROUP] * 2
    assert codes(start(group, 0), start(group, 1)) == [wire.EXIT_REGROUP] * 2  # restarted in doomed pods
    assert not told(group, 1, "host-0")
    hosts = [start(group, 0, 1), start(group, 1, 1)]
    wait_for(group.is_committed)
    assert group.outcome().value_or_raise() == "after 1"
    stay(group, *hosts)
    logs = [object_names.log(JOB, attempt, 0, host) for attempt in (0, 1) for host in (0, 1)]
    assert [name for name in logs if group.store.find(name) is None] == []


def test_a_container_that_died_as_a_whole_is_the_users_failure(group: Attempts, tmp_path: Path) -> None:
    group.submit(rest, str(tmp_path))
    hosts = [start(group, 0), start(group, 1)]
    wait_for(lambda: len(list(tmp_path.glob("began-*"))) == 2)
    kill(hosts[1])
    again = start(group, 1)
    assert codes(hosts[0], again) == [wire.EXIT_REGROUP] * 2
    second = [start(group, 0, 1), start(group, 1, 1)]
    wait_for(lambda: (tmp_path / "began-1-1").exists())
    kill(second[0])
    stays_on = start(group, 0, 1)
    wait_for(group.is_committed)
    failure = group.outcome().failure
    assert failure is not None
    assert "host 0 was killed as a whole" in failure.message
    stay(group, second[1], stays_on)


def test_a_deleted_pod_costs_the_user_nothing(group: Attempts, tmp_path: Path) -> None:
    group.submit(rest, str(tmp_path))
    hosts = [start(group, 0), start(group, 1)]
    wait_for(lambda: len(list(tmp_path.glob("began-*"))) == 2)
    for host in hosts:
        host.send_signal(signal.SIGTERM)
    assert set(codes(*hosts)) == {wire.EXIT_INTERRUPTED}
    second = [start(group, 0, 1), start(group, 1, 1)]
    wait_for(lambda: told(group, 1, "start"))
    for host in second:
        host.send_signal(signal.SIGTERM)
    codes(*second)
    start(group, 0, 2)  # one more than the infrastructure may take
    wait_for(group.is_committed)
    failure = group.outcome().failure
    assert failure is not None
    assert failure.failure_class == wire.FailureClass.PREEMPTED


def test_the_runner_keeps_the_deadline_alone_and_with_the_others(group: Attempts, tmp_path: Path) -> None:
    group.submit(rest, str(tmp_path))
    start(group, 1, KINETIC_TIMEOUT="0.5")  # host 0 never comes
    wait_for(group.is_committed)
    failure = group.outcome().failure
    assert failure is not None
    assert failure.failure_class == wire.FailureClass.DEADLINE
    assert not list(tmp_path.glob("began-*"))


def test_a_function_past_its_deadline_is_stopped(group: Attempts, tmp_path: Path) -> None:
    group.submit(rest, str(tmp_path))
    host = start(group, 0, hosts=1, KINETIC_TIMEOUT="3")
    wait_for(group.is_committed)
    failure = group.outcome().failure
    assert failure is not None
    assert failure.failure_class == wire.FailureClass.DEADLINE
    assert (tmp_path / "began-0-0").exists()
    stay(group, host)


def test_a_cancelled_job_begins_nothing(group: Attempts, tmp_path: Path) -> None:
    group.submit(note, str(tmp_path))
    group.store.create_if_absent(object_names.cancel(JOB), b"{}")
    host = start(group, 0)
    wait_for(lambda: "cancelled before it started" in group.log)
    stay(group, host)
    assert not (tmp_path / "ran").exists()

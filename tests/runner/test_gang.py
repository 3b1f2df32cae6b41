"""Hosts of a slice as real processes: they begin together, end together, and nothing runs twice."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import object_names, wire
from tests.conftest import wait_for
from tests.runner.attempts import JOB, Attempts

RESTARTED = [wire.EXIT_REGROUP, wire.EXIT_REGROUP]


@pytest.fixture
def gang(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path, retries=1)


def start(gang: Attempts, host: int, failed: int = 0, ignored: int = 0) -> subprocess.Popen[bytes]:
    """A new pod of a host."""
    number = failed + ignored
    return gang.start(
        KINETIC_HOST_COUNT="2",
        KINETIC_INFRASTRUCTURE_RETRIES="1",
        KINETIC_HOST_INDEX=str(host),
        KINETIC_POD_UID=f"uid-{host}-{number}",
        KINETIC_FAILED_COUNT=str(failed),
        KINETIC_IGNORED_COUNT=str(ignored),
        KINETIC_WORK_DIR=str(gang.folder / "work" / f"{host}-{number}"),
    )


def codes(*hosts: subprocess.Popen[bytes]) -> list[int]:
    return [host.wait(timeout=60) for host in hosts]


def exists(gang: Attempts, generation: int, name: str) -> bool:
    return gang.store.find(object_names.rendezvous(JOB, generation, name)) is not None


def record(folder: str) -> str:
    """Note who runs, and who is told to leave; end when the test says so."""
    import os
    import time
    from pathlib import Path

    me = f"{os.environ['KINETIC_HOST_INDEX']}-{os.environ['KINETIC_IGNORED_COUNT']}"
    try:
        Path(folder, f"began-{me}").touch()  # whoever sees it may tell it to leave at once
        while not Path(folder, "go").exists():
            time.sleep(0.05)
    finally:
        if Path(os.environ["KINETIC_PREEMPTED"]).exists():
            Path(folder, f"told-{me}").touch()
    return f"value of host {os.environ['KINETIC_HOST_INDEX']}"


def one_fails() -> None:
    import os
    import time
    from pathlib import Path

    if os.environ["KINETIC_HOST_INDEX"] == "1":
        raise ValueError(f"failure {os.environ['KINETIC_FAILED_COUNT']}")
    try:
        time.sleep(60)
    finally:
        print("must leave:", Path(os.environ["KINETIC_PREEMPTED"]).exists())


@pytest.mark.promise("batches: No user code before all ranks are there in one generation")
@pytest.mark.promise("batches: Per-host results policy: host 0's value")
def test_no_host_begins_alone_and_the_value_is_host_0s(gang: Attempts, tmp_path: Path) -> None:
    gang.submit(record, str(tmp_path))
    first = start(gang, 1)
    wait_for(lambda: exists(gang, 0, "host-1"))
    assert not list(tmp_path.glob("began-*"))
    second = start(gang, 0)
    wait_for(lambda: len(list(tmp_path.glob("began-*"))) == 2)
    (tmp_path / "go").touch()
    assert codes(first, second) == [0, 0]
    assert gang.outcome().value_or_raise() == "value of host 0"


def test_one_hosts_failure_is_told_with_the_stacks_of_the_others(gang: Attempts) -> None:
    gang.retries = 0
    gang.submit(one_fails)
    assert codes(start(gang, 0), start(gang, 1)) == [wire.EXIT_NEVER_RETRY] * 2
    with pytest.raises(ValueError, match="failure 0") as caught:
        gang.outcome().value_or_raise()
    told = "".join(caught.value.__notes__)
    assert "On host 1 of 2" in told
    assert "Meanwhile on host 0" in told
    assert "in one_fails" in told.partition("Meanwhile")[2]
    assert "must leave: False" in gang.log


def test_retries_are_the_gangs_whichever_host_fails(gang: Attempts) -> None:
    gang.submit(one_fails)
    assert codes(start(gang, 0), start(gang, 1)) == RESTARTED
    again = start(gang, 0, ignored=1), start(gang, 1, ignored=1)
    assert codes(*again) == [wire.EXIT_NEVER_RETRY] * 2
    with pytest.raises(ValueError, match="failure 1"):
        gang.outcome().value_or_raise()


def test_a_host_that_must_go_takes_the_others_with_it_at_no_cost(gang: Attempts, tmp_path: Path) -> None:
    gang.submit(record, str(tmp_path))
    hosts = [start(gang, 0), start(gang, 1)]
    wait_for(lambda: len(list(tmp_path.glob("began-*"))) == 2)
    hosts[1].send_signal(signal.SIGTERM)
    assert codes(*hosts) == [wire.EXIT_REGROUP, wire.EXIT_INTERRUPTED]
    assert sorted(path.name for path in tmp_path.glob("told-*")) == ["told-0-0", "told-1-0"]
    (tmp_path / "go").touch()
    assert codes(start(gang, 0, ignored=1), start(gang, 1, ignored=1)) == [0, 0]
    assert exists(gang, 1, "end")


def test_a_vanished_host_is_replaced_with_nothing_beside_it(gang: Attempts, tmp_path: Path) -> None:
    gang.submit(record, str(tmp_path))
    hosts = [start(gang, 0), start(gang, 1)]
    wait_for(lambda: len(list(tmp_path.glob("began-*"))) == 2)
    _kill_group(hosts[1])
    again = start(gang, 1, ignored=1)
    assert codes(hosts[0]) == [wire.EXIT_REGROUP]
    assert not (tmp_path / "began-1-1").exists()
    (tmp_path / "go").touch()
    assert codes(start(gang, 0, ignored=1), again) == [0, 0]


@pytest.mark.promise("batches: Slice, one host dead at the start")
def test_a_host_replaced_early_costs_the_others_no_pod(gang: Attempts, tmp_path: Path) -> None:
    gang.submit(record, str(tmp_path))
    waiting = start(gang, 1)
    wait_for(lambda: exists(gang, 0, "host-1"))
    _kill_group(waiting)
    again = start(gang, 1, ignored=1)
    wait_for(lambda: exists(gang, 1, "host-1"))
    (tmp_path / "go").touch()
    assert codes(again, start(gang, 0)) == [0, 0]


@pytest.mark.promise("batches: … at the end")
def test_nobody_waits_for_a_host_dead_after_its_commit(gang: Attempts, tmp_path: Path) -> None:
    gang.submit(record, str(tmp_path))
    (tmp_path / "go").touch()
    other, first = start(gang, 1), start(gang, 0)
    wait_for(lambda: exists(gang, 0, "returned-1"))
    codes(first)
    gang.store.delete(object_names.rendezvous(JOB, 0, "end"))  # as if it had died before writing it
    assert codes(start(gang, 0, ignored=1), other) == [0, 0]


def test_too_many_interruptions_end_the_job(gang: Attempts, tmp_path: Path) -> None:
    gang.submit(record, str(tmp_path))
    for number in range(2):
        hosts = [start(gang, host, ignored=number) for host in (0, 1)]
        wait_for(lambda: len(list(tmp_path.glob("began-*"))) == 2 * (number + 1))  # noqa: B023
        hosts[0].send_signal(signal.SIGTERM)
        last: list[Any] = codes(*hosts)
    assert last == [wire.EXIT_INTERRUPTED, wire.EXIT_NEVER_RETRY]
    assert "interrupted 2 times" in str(gang.outcome().exception())


def _kill_group(host: subprocess.Popen[bytes]) -> None:
    import os

    os.killpg(host.pid, signal.SIGKILL)
    host.wait()

"""What the end of a generation means, whoever is left to say it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner.attempt import take_job
from kinetic_core._runner.rendezvous import FAILED, INTERRUPTED, STOPPED, Rendezvous
from kinetic_core._runner.store import DirectoryStore
from tests.runner.attempts import Attempts


class Clock:
    """Passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hosts(tmp_path: Path, clock: Clock) -> list[Rendezvous]:
    """Three hosts of which user code has begun on all; one retry."""
    attempts = Attempts(tmp_path, retries=1).submit(len, "")
    job = replace(take_job(attempts.environment()), hosts=3)
    store = DirectoryStore(attempts.store.uri, str(tmp_path / "store"))
    found = [
        Rendezvous(
            replace(job, host=host, pod_uid=f"uid-{host}"), store, None, clock.sleep, lambda: clock.now
        )
        for host in range(3)
    ]
    for gang in found:
        gang.tell(f"host-{gang.job.host}", failed=0)
    found[0].tell("start")
    return found


def fails(gang: Rendezvous, at: float, **facts: Any) -> None:
    gang.report(FAILED, **{"failed_at": at, "retry": True, "outcome": None, **facts})
    gang.stop(FAILED)


def test_the_earliest_failure_is_the_cause(hosts: list[Rendezvous]) -> None:
    fails(hosts[2], 20.0)
    fails(hosts[1], 10.0)
    hosts[0].report(STOPPED)
    end = hosts[2].end()
    assert (end["kind"], end["by"], end["final"]) == (FAILED, 1, False)
    assert [gang.end() for gang in hosts] == [end] * 3


def test_a_failure_that_no_retry_mends_is_final(hosts: list[Rendezvous]) -> None:
    fails(hosts[1], 10.0, retry=False)
    for host in (0, 2):
        hosts[host].report(STOPPED)
    assert hosts[1].end()["final"]


def test_a_failure_for_want_of_a_lost_host_is_not_the_users(hosts: list[Rendezvous], clock: Clock) -> None:
    fails(hosts[0], 10.0)
    hosts[2].report(STOPPED)
    end = hosts[0].end()
    assert (end["kind"], end["by"]) == (INTERRUPTED, 1)
    assert 20 <= clock.now < 25


def test_when_the_host_that_stopped_it_is_gone_another_decides(hosts: list[Rendezvous], clock: Clock) -> None:
    hosts[0].stop(INTERRUPTED)
    assert hosts[1].end()["kind"] == INTERRUPTED
    assert 45 <= clock.now < 50


def test_failures_and_interruptions_are_counted_apart(hosts: list[Rendezvous]) -> None:
    fails(hosts[0], 10.0)
    for host in (1, 2):
        hosts[host].report(STOPPED)
    after = hosts[0].generation.after(hosts[0].end())
    assert (after.number, after.failed, after.interrupted) == (1, 1, 0)

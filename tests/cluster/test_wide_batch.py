"""A batch of 500 on real nodes, whose clients die one after the other, from its first request to its last."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, count
from typing import Any

import pytest

import kinetic_core
from kinetic_core import BatchHandle
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import GROUP_ID
from tests.cluster.dying import CLEANING, client, die_in_turn
from tests.cluster.objects import stored
from tests.conftest import wait_for

pytestmark = [pytest.mark.usefixtures("gke"), pytest.mark.alone, pytest.mark.slow]
INPUTS = [f"input {number}" for number in range(500)]
EACH = 30
"""Before this one, a process dies at every request: it submits with the first dozen and observes with the
rest, of which there are one or two a minute. Then one dies at each `STEP`-th, most of them reading values.
"""
STEP = 40


@kinetic_core.run(accelerator="cpu", cpu=0.1, memory="160Mi")
def echo(text: str) -> str:
    return text


def call(group_id: str) -> BatchHandle:
    """What every client does first."""
    return echo.run_async_map(INPUTS, group_id=group_id, max_concurrent=12)


def collect(group_id: str) -> int:
    """Clients that make the call and read all values; how many died."""

    def act() -> None:
        assert call(group_id).results(cleanup=False) == INPUTS

    return die_in_turn(act, chain(range(1, EACH), count(EACH, STEP)))


def collect_and_drop(group_id: str) -> int:
    """The same, of clients that die when they remove what a batch that was collected needs no more."""

    def act() -> None:
        assert call(group_id).results() == INPUTS

    return die_in_turn(act, count(1), CLEANING)


def clean_up(group_id: str) -> int:
    """Clients that find the batch and remove all that is stored of it; how many died."""

    def act() -> None:
        with suppress(FileNotFoundError):  # the one before has come far enough
            kinetic_core.attach_batch(group_id).cleanup()

    return die_in_turn(act, count(1), CLEANING)


def died(clients: Callable[[str], int], group_id: str, meanwhile: Callable[[], None] = lambda: None) -> int:
    """How many of those clients died, which another process begets."""
    program = (
        f"from tests.cluster import test_wide_batch as here; print(here.{clients.__name__}({group_id!r}))"
    )
    with client(program) as process:
        meanwhile()
        said, _ = process.communicate(timeout=600)
    return int(said)


def objects(api: ClusterApi, kind: str, group_id: str) -> list[dict[str, Any]]:
    query = {"labelSelector": f"{GROUP_ID}={group_id}"}
    found: list[dict[str, Any]] = api.list(kind, os.environ["KINETIC_NAMESPACE"], query)["items"]
    return found


def claimed(location: str, group_id: str) -> list[str]:
    """The inputs that were begun with, each as often as it was."""
    names = [name for name in stored(location, f"jobs/{group_id}-") if name.endswith("/claim.json")]
    return sorted(name.split("/")[1] for name in names)


@pytest.mark.promise("batches: client killed at each step of a 500-wide map")
def test_each_input_runs_once_whichever_of_its_clients_die(api: ClusterApi, location: str) -> None:
    """The same call is made by one process after the other. They die while they submit, observe, read 500
    values and drop what nobody needs then; others die in a clean-up. All 500 values come, each input has
    run once and in the one Job, and nothing is left.
    """
    group_id = f"grp-{secrets.token_hex(4)}"
    every = sorted(f"{group_id}-{index}" for index in range(len(INPUTS)))
    seen: set[str] = set()

    def see_the_job() -> None:
        wait_for(lambda: objects(api, "Job", group_id), 60)
        seen.update(job["metadata"]["uid"] for job in objects(api, "Job", group_id))

    assert died(collect, group_id, see_the_job) >= EACH - 1 + len(INPUTS) // STEP
    (job,) = objects(api, "Job", group_id)
    assert seen == {job["metadata"]["uid"]}
    assert (job["spec"]["completions"], job["status"]["succeeded"]) == (len(INPUTS), len(INPUTS))
    assert claimed(location, group_id) == every
    assert died(collect_and_drop, group_id) >= 1
    assert objects(api, "Job", group_id) == []
    wait_for(lambda: not objects(api, "Pod", group_id), 60)
    assert claimed(location, group_id) == every
    assert died(clean_up, group_id) >= 2
    assert [name for name in stored(location, "") if group_id in name] == []

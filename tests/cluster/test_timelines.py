"""Where the time of a job on a real cluster went: all of it, however the job ended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

import kinetic_core
from kinetic_core import JobHandle
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.jobs.timeline import Explanation
from tests.cluster.jobs import delete, pods
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("gke")


def returns() -> None:
    time.sleep(1)


def raises() -> None:
    raise ValueError("mine")


def raises_once() -> None:
    time.sleep(1)
    if os.environ["KINETIC_FAILED_COUNT"] == "0":
        raise ValueError("the first")


def leaves() -> None:
    os._exit(3)


def sleeps() -> None:
    print("asleep", flush=True)
    time.sleep(600)


def submitted(function: Callable[[], None], **options: Any) -> JobHandle:
    return kinetic_core.run(accelerator="cpu", cpu=0.1, **options)(function).run_async()


def seconds(told: Explanation, name: str, attempt: int = 0) -> float:
    return sum(each.seconds for each in told.phases if (each.name, each.attempt) == (name, attempt))


@pytest.mark.promise("gke: `explain()`: each second, its cause, what would shorten it")
@pytest.mark.parametrize("wave", range(7))
def test_the_phases_of_every_way_to_end_add_up(api: ClusterApi, wave: int) -> None:
    """Eight jobs in each wave, fifty-six in all: Kubernetes' whole seconds fall differently each time."""
    jobs = {
        "timed out": submitted(sleeps, timeout=40),
        "cancelled": submitted(sleeps),
        "lost": submitted(sleeps, infrastructure_retries=0),
        "never ran": submitted(returns, node_selector={"kubernetes.io/hostname": "none"}, timeout=10),
        "returned": submitted(returns),
        "raised": submitted(raises),
        "retried": submitted(raises_once, retries=1),
        "left": submitted(leaves),
    }
    for name in ("cancelled", "lost"):
        wait_for(lambda: "asleep" in (jobs[name].logs() or ""), 120)  # noqa: B023
        began = time.time()
        wait_for(lambda: time.time() > began + 3)  # noqa: B023  what is measured below
    jobs["cancelled"].cancel()
    delete(api, pods(api, jobs["lost"])[0])
    told = {}
    for name, job in jobs.items():
        wait_for(lambda: job.status().is_terminal, 180)  # noqa: B023
        told[name] = job.explain()
    for name, each in told.items():
        submission = datetime.fromisoformat(jobs[name].created_at).timestamp()
        called = submission - jobs[name].preparation_seconds
        whole = (jobs[name].observe().finished_at or 0.0) - called
        added = sum(phase.seconds for phase in each.phases)
        assert added == pytest.approx(whole, rel=0.01), (wave, name, each)
        assert "unknown" not in {phase.name for phase in each.phases}, (name, each)
    ran = [name for name, each in told.items() if seconds(each, "function") > 0]
    assert set(ran) == jobs.keys() - {"never ran"}
    assert seconds(told["timed out"], "function") > 3
    assert seconds(told["retried"], "start") > 0
    assert min(seconds(told["retried"], "function", attempt) for attempt in (0, 1)) > 0.9
    for job in jobs.values():
        job.cleanup()


@pytest.mark.promise("gke: `explain()`: each second, its cause, what would shorten it")
def test_a_collected_job_is_explained_by_its_events() -> None:
    """Its Job and its pod are gone, and what they waited for is not called a queue."""
    job = submitted(returns)
    job.result(stream_logs=False)
    wait_for(lambda: job.place.get(job.namespace, job.job_id) is None, 60)
    told = job.explain()
    names = {phase.name for phase in told.phases}
    assert {"container", "start", "function"} <= names, told
    assert names.isdisjoint({"unknown", "queue"}), told
    assert sum(phase.seconds for phase in told.phases) == pytest.approx(told.seconds)

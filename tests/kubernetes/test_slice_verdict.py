"""Several pods, one verdict: which host is missing, and whose end is told."""

from __future__ import annotations

from typing import Any

import pytest

from kinetic_core._runner import wire
from kinetic_core._runner.wire import FailureClass
from kinetic_core.backends.kubernetes.names import HOST_INDEX
from kinetic_core.backends.kubernetes.verdict import observe
from kinetic_core.job import JobStatus
from tests.kubernetes.looks import AT, FAILED, ended, job, pod

RUNNING = {"running": {"startedAt": AT}}


def slice_of(hosts: int, *conditions: tuple[str, str, str]) -> dict[str, Any]:
    return {**job(*conditions), "spec": {"completions": hosts}}


def host(index: int, state: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    made = pod(state, **more)
    made["metadata"]["annotations"][HOST_INDEX] = str(index)
    return made


def test_it_runs_when_all_run() -> None:
    assert observe(slice_of(2), [host(0, RUNNING), host(1, RUNNING)]).status is JobStatus.RUNNING


def test_one_that_has_ended_well_is_not_missing() -> None:
    assert observe(slice_of(2), [host(0, RUNNING), host(1, ended(0))]).status is JobStatus.RUNNING


def test_a_host_without_a_pod_is_named() -> None:
    seen = observe(slice_of(2), [host(1, RUNNING)])
    assert (seen.status, seen.reason) == (JobStatus.PENDING, "WaitingForHosts")
    assert "host 0 of 2 has no pod yet" in seen.message


def test_a_host_without_a_node_has_the_schedulers_words() -> None:
    unscheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no nodes",
    }
    seen = observe(slice_of(2), [host(0, RUNNING), host(1, conditions=[unscheduled])])
    assert (seen.status, seen.reason) == (JobStatus.PENDING, "Unschedulable")
    assert seen.message == "host 1 of 2: no nodes; the others wait for it"


def test_a_host_whose_image_does_not_exist_ends_the_job() -> None:
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}
    seen = observe(slice_of(2), [host(0, RUNNING), host(1, waiting)])
    assert seen.failure is not None
    assert seen.failure.failure_class == FailureClass.IMAGE


@pytest.mark.parametrize("follower", [wire.EXIT_REGROUP, wire.EXIT_INTERRUPTED, 137])
def test_the_host_that_ran_out_of_memory_is_the_cause(follower: int) -> None:
    pods = [host(0, ended(137, "OOMKilled")), host(1, ended(follower))]
    for order in (pods, pods[::-1]):
        failure = observe(slice_of(2, FAILED), order).failure
        assert failure is not None
        assert failure.failure_class == FailureClass.OUT_OF_MEMORY

"""Pods and events of an earlier Job of the same name, which outlive it, are not the new one's."""

from __future__ import annotations

from typing import Any

import pytest

from kinetic_core.backends.kubernetes.fallbacks import current
from kinetic_core.backends.kubernetes.names import LEADER_WORKER_SET
from kinetic_core.backends.kubernetes.watch_cache import with_refusal

pytestmark = pytest.mark.attack

BEFORE, THEN, AFTER = (f"2026-01-01T00:00:0{second}Z" for second in range(3))


def job(**labels: str) -> dict[str, Any]:
    return {"metadata": {"name": "kinetic-a", "uid": "new", "creationTimestamp": THEN, "labels": labels}}


def pod(owner: str, created: str) -> dict[str, Any]:
    return {"metadata": {"creationTimestamp": created, "ownerReferences": [{"uid": owner}]}}


def event(kind: str, uid: str, at: str) -> dict[str, Any]:
    whom = {"kind": kind, "name": "kinetic-a", "uid": uid}
    return {"involvedObject": whom, "lastTimestamp": at, "message": "no quota", "metadata": {}}


def test_pods_count_for_the_job_that_owns_them() -> None:
    pods = [pod("old", AFTER), pod("new", AFTER), {"metadata": {"creationTimestamp": AFTER}}]
    assert current([job()], pods) == (job(), [pods[1]])


def test_pods_of_a_set_came_after_their_job() -> None:
    pods = [pod("set", BEFORE), pod("set", THEN), pod("set", AFTER)]
    mine = job(**{LEADER_WORKER_SET: "true"})
    assert current([mine], pods) == (mine, pods[1:])


@pytest.mark.parametrize(
    ("told", "counts"),
    [
        (event("Job", "old", AFTER), False),
        (event("Job", "new", AFTER), True),
        (event("StatefulSet", "set", BEFORE), False),
        (event("StatefulSet", "set", AFTER), True),
        ({**event("StatefulSet", "set", AFTER), "lastTimestamp": None, "eventTime": BEFORE}, False),
    ],
)
def test_events_count_for_the_job_they_are_about(told: dict[str, Any], counts: bool) -> None:
    assert (with_refusal(job(), [], told) != job()) is counts

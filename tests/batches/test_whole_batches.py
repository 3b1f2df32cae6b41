"""A batch that shares Jobs, as one thing: in lists, for reaping; and its inputs as jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kinetic_core.backends.kubernetes.names import HOST_INDEX, JOB_ID, SIGNING_SECRET
from kinetic_core.connections import Connections
from kinetic_core.job import JobStatus
from kinetic_core.jobs.garbage_collection import orphans, reap
from kinetic_core.jobs.inputs import children, forget
from kinetic_core.jobs.listing import summaries
from kinetic_core.jobs.signing import UNVERIFIED
from kinetic_core.settings import read_settings
from kinetic_core.testing import kubelet as behaviours
from kinetic_core.testing.kubelet import PodBehaviour
from tests.batches.places import PLAN, Place
from tests.conftest import wait_for


def test_a_list_has_it_as_one_thing(place: Any) -> None:
    def behave(pod: dict[str, Any]) -> PodBehaviour:
        index = int(pod["metadata"]["labels"][HOST_INDEX])
        if index == 2:
            return behaviours.runs_until_stopped()
        here.tell(pod, "failed" if index == 1 else "succeeded")
        return behaviours.exits(65) if index == 1 else behaviours.succeeds()

    here: Place = place(behave)
    here.submit([1, 2, 3])
    here.submit([1, 2, 3])
    wait_for(lambda: [each.status for each in summaries(here.backend)] == [JobStatus.RUNNING])
    wait_for(lambda: summaries(here.backend)[0].failed == 1)
    here.store.requests.clear()
    (whole,) = summaries(here.backend, "default")
    assert here.store.requests == [("list", "index/"), ("list", "jobs/")]
    assert (whole.job_id, whole.func_name, whole.inputs) == ("grp-a", "square", 3)
    assert whole.reason == "1 of 3 succeeded, 1 failed"
    here.backend.delete("default", "grp-a-p0")
    (whole,) = summaries(here.backend)
    assert (whole.status, whole.succeeded, whole.reason) == (JobStatus.FAILED, 1, "")


def test_one_that_was_cancelled_says_so(place: Any) -> None:
    here: Place = place(lambda _: behaviours.runs_until_stopped())
    here.submit([1, 2])
    wait_for(lambda: [each.status for each in summaries(here.backend)] == [JobStatus.RUNNING])
    here.backend.delete("default", "grp-a-p0")
    assert summaries(here.backend)[0].status is JobStatus.CANCELLED


def test_it_is_reaped_as_one_thing(place: Any) -> None:
    here: Place = place(lambda pod: [here.tell(pod), behaviours.succeeds()][1])
    here.submit([1, 2])
    here.submit([1, 2], replace(PLAN, group_id="grp-a-2"))  # no input of the other
    wait_for(lambda: all(each.status is JobStatus.SUCCEEDED for each in summaries(here.backend)))
    assert orphans(here.backend, "default") == []
    kept = {orphan.job_id: orphan for orphan in orphans(here.backend, "default", retention=0)}
    assert set(kept) == {"grp-a", "grp-a-2"}
    reap(here.backend, kept["grp-a"])
    assert [each.job_id for each in summaries(here.backend)] == ["grp-a-2"]
    left = {info.name for info in here.store.list("")}
    assert not [name for name in left if name.startswith(("batches/grp-a/", "jobs/grp-a-0/"))]
    assert "jobs/grp-a-2-1/result" in left
    assert [job["metadata"]["labels"][JOB_ID] for job in here.jobs()] == ["grp-a-2-p0"]
    reap(here.backend, kept["grp-a"])  # nobody minds a second time


def test_outcomes_that_nobody_can_verify_now_are_kept(place: Any) -> None:
    """The namespace's secret was replaced, or this account may not read it, but another may."""
    here: Place = place(lambda pod: [here.tell(pod), behaviours.succeeds()][1])
    here.submit([1, 2])
    wait_for(lambda: summaries(here.backend)[0].status is JobStatus.SUCCEEDED)
    here.backend.remove("default", "grp-a-p0")
    here.fake.objects.remove("Secret", "default", SIGNING_SECRET)
    other = here.backend_of(Connections(read_settings()))
    (whole,) = summaries(other)
    assert (whole.status, whole.reason) == (JobStatus.NOT_FOUND, UNVERIFIED)
    assert orphans(other, "default", older_than=0) == []
    (kept,) = orphans(other, "default", retention=0)
    assert kept.kept
    reap(other, kept)
    left = [info.name for info in here.store.list("")]
    assert not [name for name in left if name.startswith(("index/", "batches/", "jobs/"))]


def test_jobs_of_a_batch_that_the_store_forgot_are_found(place: Any) -> None:
    here: Place = place()
    here.submit([1, 2])
    forget(here.store, "grp-a")
    (orphan,) = orphans(here.backend, "default")
    assert (orphan.job_id, orphan.stored, orphan.is_batch) == ("grp-a", False, True)
    reap(here.backend, orphan)
    assert here.jobs() == []


def test_its_inputs_are_jobs_by_their_references(place: Any) -> None:
    here: Place = place()
    here.submit([1, 2, 3])
    assert [one.job_id for one in children(here.backend, "grp-a")] == ["grp-a-0", "grp-a-1", "grp-a-2"]
    here.store.delete("batches/grp-a/manifest.json")
    assert list(children(here.backend, "grp-a")) == []

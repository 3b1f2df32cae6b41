"""Buckets whose objects are gone: by a lifecycle rule, or because the bucket was made anew."""

from __future__ import annotations

import pytest

import kinetic_core
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.errors import JobMisconfigured
from kinetic_core.testing.fault_proxy import FaultProxy
from tests.cluster.jobs import greet, pods

pytestmark = [pytest.mark.usefixtures("gke"), pytest.mark.attack]


@pytest.mark.parametrize("lost", ["packs/", "trees/", "runners/", "all"])
def test_the_next_submission_stores_what_is_gone(lost: str) -> None:
    first = greet.run_async("you")
    assert first.result(stream_logs=False, cleanup=False) == "hello you"
    store = first.place.store
    for prefix in ("packs/", "trees/", "runners/", "jobs/", "index/") if lost == "all" else (lost,):
        store.delete_all(prefix)
    if lost != "all":
        first.cleanup()
    handle = greet.run_async("me")
    assert handle.result(stream_logs=False, cleanup=False, timeout=120) == "hello me"
    assert handle.observe().attempt == 0
    handle.cleanup()


def test_an_unchanged_submission_asks_the_store_four_times(store_proxy: FaultProxy) -> None:
    greet.run_async("you").result(stream_logs=False)
    before = len(store_proxy.faults.requests)
    handle = greet.run_async("me")
    asked = [each.line for each in store_proxy.faults.requests[before:] if "/log" not in each.line]
    assert len(asked) <= 4, asked
    handle.result(stream_logs=False)


def test_a_runner_gone_while_a_job_waits_ends_it_at_once(api: ClusterApi) -> None:
    handle = kinetic_core.run(accelerator="cpu", queue="nobody")(greet.__wrapped__).run_async("you")
    handle.place.store.delete_all("runners/")
    api.patch("Job", handle.namespace, handle.k8s_name, {"spec": {"suspend": False}})
    with pytest.raises(JobMisconfigured, match=r"archive is gone from the job's store.*Submit again"):
        handle.result(stream_logs=False, cleanup=False, timeout=120)
    assert len(pods(api, handle)) == 1
    handle.cleanup()
    assert greet.run_async("again").result(stream_logs=False) == "hello again"

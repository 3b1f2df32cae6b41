"""The caches of a namespace's jobs: what they read and keep, and what happens when they are closed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.backends.kubernetes.client import ClusterApi, Expired
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.names import FAILED_CREATE, LEADER_WORKER_SET, WORKER
from kinetic_core.backends.kubernetes.verdict import observe
from kinetic_core.backends.kubernetes.watch_cache import NamespaceWatch, SharedParts, WatchCache
from kinetic_core.errors import ClusterError
from kinetic_core.job import JobReference, JobStatus
from kinetic_core.testing import FakeCluster
from kinetic_core.testing.kube_objects import merge
from tests.conftest import wait_for


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    made = FakeCluster()
    yield made
    made.close()


def api_of(cluster: FakeCluster, folder: Path) -> ClusterApi:
    return ClusterApi(Target(str(cluster.write_kubeconfig(folder / "kubeconfig"))))


def queued(name: str) -> dict[str, Any]:
    """A Job that waits: all but its name is as in the others."""
    environment = [{"name": f"V{number}", "value": "x" * 40} for number in range(20)]
    containers = [{"name": "kinetic-worker", "image": "python", "env": environment}]
    labels = {"app": "kinetic", "kinetic.dev/job-id": name}
    template = {"metadata": {"labels": labels}, "spec": {"containers": containers, "restartPolicy": "Never"}}
    metadata = {"name": f"kinetic-{name}", "labels": labels, "managedFields": [{"manager": name}]}
    counts = {"completionMode": "Indexed", "completions": 1, "parallelism": 1, "backoffLimitPerIndex": 0}
    return {"metadata": metadata, "spec": {**counts, "suspend": True, "template": template}}


def parts_of(value: Any) -> Iterator[int]:
    """The ids of the objects and lists in a value."""
    if isinstance(value, dict | list):
        yield id(value)
        for each in value.values() if isinstance(value, dict) else value:
            yield from parts_of(each)


def test_a_further_job_takes_memory_for_its_own_parts_only(cluster: FakeCluster, tmp_path: Path) -> None:
    """A triggerer keeps ten thousand jobs of a mapped task; the first ones are listed, others come later."""
    api = api_of(cluster, tmp_path)
    names = [f"job-{number}" for number in range(20)]
    for name in names[:10]:
        api.create("Job", "default", queued(name))
    cache = WatchCache(api, "default")
    cache.changes(None)
    for name in names[10:]:
        api.create("Job", "default", queued(name))

    def known() -> list[dict[str, Any]]:
        return [found[0] for name in names if (found := cache.get(name))]

    def stored() -> list[dict[str, Any]]:
        items = {item["metadata"]["name"]: item for item in api.list("Job", "default")["items"]}
        for item in items.values():
            item["metadata"].pop("managedFields")
        return [items[f"kinetic-{name}"] for name in names]

    wait_for(lambda: known() == stored())
    jobs = known()
    cache.close()
    of_one = set(parts_of(jobs[0]))
    assert len(of_one) > 25
    kept = {part for job in jobs for part in parts_of(job)}
    its_own = (len(kept) - len(of_one)) / (len(jobs) - 1)
    assert its_own < 0.4 * len(of_one)
    assert len({id(job["spec"]["template"]["spec"]) for job in jobs}) == 1


def test_a_long_list_is_read_in_pages_of_one_version(cluster: FakeCluster, tmp_path: Path) -> None:
    api = api_of(cluster, tmp_path)
    names = [f"job-{number}" for number in range(5)]
    for name in names:
        api.create("Job", "default", queued(name))
    found = api.list("Job", "default", page_size=2)
    assert [item["metadata"]["name"] for item in found["items"]] == [f"kinetic-{name}" for name in names]
    assert cluster.faults.count(r"GET .*/jobs\?.*limit=2") == 3
    assert len(api.list("Job", "default", {"limit": "2"})["items"]) == 2

    cluster.faults.answer(r"GET .*/jobs\?.*continue=", 410, body=b'{"message": "too old"}', times=1)
    with pytest.raises(Expired):
        api.list("Job", "default", page_size=2)

    cluster.faults.answer(r"GET .*/jobs\?.*continue=", 410, body=b'{"message": "too old"}', times=1)
    cache = WatchCache(api, "default", page_size=2)
    cache.changes(None)  # begins anew
    assert all(cache.get(name) for name in names)
    cache.close()


def test_the_search_of_all_jobs_waits_for_the_first_list(cluster: FakeCluster, tmp_path: Path) -> None:
    """Else the search for orphans reads ten thousand jobs beside the watch, while a triggerer starts."""
    api = api_of(cluster, tmp_path)
    api.create("Job", "default", queued("job-1"))
    cache = WatchCache(api, "default")
    assert cache.jobs() is None  # nobody watches
    cluster.faults.delay("GET .*/jobs", 1)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(cache.changes, None)
        wait_for(lambda: cluster.faults.count("GET .*/jobs"))
        assert (cache.jobs() or {}).keys() == {"job-1"}
        asked.result(timeout=20)
    cache.close()


def test_a_broken_watch_answers_no_search_of_all_jobs(tmp_path: Path) -> None:
    """Whoever searches then lists them, and learns that the cluster is silent."""
    with FakeCluster() as cluster:
        api = api_of(cluster, tmp_path)
        api.create("Job", "default", queued("job-1"))
        cache = WatchCache(api, "default")
        cache.changes(None)
        assert list(cache.jobs() or ()) == ["job-1"]
    wait_for(lambda: cache.jobs() is None)
    cache.close()


@pytest.mark.parametrize("limit", [0, 3, 1_000])
def test_shared_parts_are_as_they_were_written(limit: int) -> None:
    """Also while parts are forgotten, and where Python holds different values to be equal."""
    one = {"a": 1, "b": [1, "1", {"c": None}], "d": {}, "e": []}
    other = {"a": True, "b": [True, "1", {"c": None}], "d": {"f": 1.0}, "e": [[], [1.0], {}]}
    parts = SharedParts(limit)
    for each in (one, other, one, other):
        text = json.dumps([each, each])
        assert json.dumps(json.loads(text, object_pairs_hook=parts.make_object)) == text


def test_who_waits_for_a_cache_that_is_closed_goes_on(cluster: FakeCluster, tmp_path: Path) -> None:
    """Else the thread of a closed client stays until the first list's time is up."""
    cache = WatchCache(api_of(cluster, tmp_path), "default")
    cluster.faults.delay("GET .*/jobs", 120)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(cache.changes, None)
        wait_for(lambda: cluster.faults.count("GET .*/jobs"))
        cache.close()
        assert asked.result(timeout=20)[1] == set()  # the list's time is 30 s


class CountingApi(ClusterApi):
    """Counts the bytes of the objects that it has read."""

    read = 0

    def call(self, *asked: Any, **more: Any) -> dict[str, Any]:
        found = super().call(*asked, **more)
        self.read += len(json.dumps(found))
        return found

    def watch(self, *asked: Any, **more: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        for event in super().watch(*asked, **more):
            self.read += len(json.dumps(event))
            yield event


def counting_api_of(cluster: FakeCluster, folder: Path) -> CountingApi:
    return CountingApi(Target(str(cluster.write_kubeconfig(folder / "kubeconfig"))))


def reference(name: str, **more: Any) -> JobReference:
    told = {"job_id": name, "k8s_name": f"kinetic-{name}", "namespace": "default", "backend": "gke", **more}
    names = (each.name for each in fields(JobReference) if each.default is MISSING)
    return JobReference(**{**dict.fromkeys(names, ""), **told})


def refusal(name: str) -> dict[str, Any]:
    """What the Job controller says when a quota leaves no room for a Job's pod."""
    about = {"kind": "Job", "name": name}
    return {
        "metadata": {"name": f"{name}.1"},
        "reason": FAILED_CREATE,
        "involvedObject": about,
        "message": "no",
    }


def populate(cluster: FakeCluster, number: int) -> None:
    """Add other jobs, each with a pod, and with an event of a refused one."""
    for each in range(number):
        job = queued(f"other-{each}")
        cluster.objects.create("Job", "default", job)
        pod = {"name": f"kinetic-other-{each}-0", "labels": job["metadata"]["labels"]}
        cluster.objects.create("Pod", "default", {"metadata": pod, "spec": job["spec"]["template"]["spec"]})
        cluster.objects.create("Event", "default", refusal(f"kinetic-other-{each}"))


def bytes_until_the_end(others: int, folder: Path) -> int:
    """Wait for one job beside others that change meanwhile; return how many bytes were read for that."""
    with FakeCluster() as cluster:
        cluster.freeze()  # its controller looks at every pod for every Job
        populate(cluster, others)
        cluster.objects.create("Job", "default", queued("job-1"))
        api = counting_api_of(cluster, folder)
        here, own = NamespaceWatch(api, "default"), reference("job-1")
        token, _ = here.changes(None, own)
        for kind in ("Job", "Pod", "Event"):
            for item in cluster.objects.list(kind, "default")[1]:
                if (name := item["metadata"]["name"]) != "kinetic-job-1":
                    edit(cluster, kind, name, {"metadata": {"annotations": {"changed": "true"}}})
        done = {"type": "Complete", "status": "True"}
        edit(cluster, "Job", "kinetic-job-1", {"status": {"conditions": [done]}})
        wait_for(lambda: status_in(here, "job-1") is JobStatus.SUCCEEDED)
        assert here.changes(token, own)[1] == {"job-1"}
        assert here.get("other-0") is None
        here.close()
    return api.read


def edit(cluster: FakeCluster, kind: str, name: str, patch: dict[str, Any]) -> None:
    cluster.objects.change(kind, "default", name, lambda item: merge(item, patch))


def status_in(here: NamespaceWatch, name: str) -> JobStatus | None:
    found = here.get(name)
    return observe(*found).status if found else None


def lists(cluster: FakeCluster) -> int:
    return cluster.faults.count(r"GET \S*/(jobs|pods|events)\?(?!\S*watch=true)")


@pytest.mark.promise("scale: A watch of its own job by field selector")
def test_one_job_is_watched_without_the_others(tmp_path: Path) -> None:
    alone, beside_others = (bytes_until_the_end(others, tmp_path) for others in (0, 1_000))
    assert beside_others < 1.5 * alone < 100_000


@pytest.mark.promise("scale: A watch of its own job by field selector")
def test_a_second_job_shares_one_watch_of_all(cluster: FakeCluster, tmp_path: Path) -> None:
    """Ten thousand jobs are on one watch: no further one costs a request."""
    populate(cluster, 20)
    here = NamespaceWatch(api_of(cluster, tmp_path), "default")
    token, _ = here.changes(None, reference("other-0"))
    assert (here.get("other-0") is not None, here.get("other-1")) == (True, None)
    token, changed = here.changes(token, reference("other-1"))
    assert changed is None  # what the first watch has told of others is nothing
    asked = lists(cluster)
    assert asked == 6
    for number in range(20):
        token, changed = here.changes(token, reference(f"other-{number}"))
        assert changed == set()
        assert here.get(f"other-{number}") is not None
    here.changes(token)
    assert lists(cluster) == asked
    here.close()


def test_who_asks_for_all_jobs_is_told_of_all(cluster: FakeCluster, tmp_path: Path) -> None:
    """A triggerer with a single trigger searches for orphans among all jobs, by the watch."""
    populate(cluster, 3)
    here = NamespaceWatch(api_of(cluster, tmp_path), "default")
    assert here.jobs() is None  # nobody watches
    here.changes(None, reference("other-0"))
    assert set(here.jobs() or ()) == {"other-0", "other-1", "other-2"}
    asked = lists(cluster)
    assert set(here.jobs() or ()) == {"other-0", "other-1", "other-2"}
    assert lists(cluster) == asked
    here.close()


def test_a_later_job_is_watched_alone_again(cluster: FakeCluster, tmp_path: Path) -> None:
    """A notebook waits for a job now and then: once no thread watches, the next one begins anew."""
    populate(cluster, 3)
    here = NamespaceWatch(api_of(cluster, tmp_path), "default")
    for name in ("other-0", "other-1"):
        here.changes(None, reference(name))
        here.close()
    assert lists(cluster) == cluster.faults.count(r"GET \S*other-\d\S*$") - cluster.faults.count("watch=true")
    assert here.get("other-2") is None


def test_a_single_watch_outlives_what_breaks_it(tmp_path: Path) -> None:
    with FakeCluster() as cluster:
        cluster.faults.answer(r"/(jobs|pods)\?.*watch=true", 410, body=b'{"message": "too old"}', times=2)
        cluster.faults.answer("watch=true", 503, times=3)
        cluster.faults.cut_reply("watch=true", 300, times=3)
        populate(cluster, 3)
        cluster.objects.create("Job", "default", queued("job-1"))
        here, own = NamespaceWatch(api_of(cluster, tmp_path), "default"), reference("job-1")
        here.changes(None, own)
        cluster.objects.forget()
        cluster.disconnect()
        edit(cluster, "Job", "kinetic-job-1", {"spec": {"suspend": False}})

        def has_succeeded() -> bool:
            with contextlib.suppress(ClusterError):  # it says why it has no list yet; who waits asks again
                here.changes(None, own)
            return status_in(here, "job-1") is JobStatus.SUCCEEDED

        wait_for(lambda: has_succeeded() and cluster.faults.unmet == ())
        assert here.get("other-0") is None
        here.close()


def test_what_may_be_listed_and_not_watched_is_seen_too(cluster: FakeCluster, tmp_path: Path) -> None:
    cluster.faults.answer("watch=true", 403, body=b'{"message": "forbidden"}', times=None)
    cluster.objects.create("Job", "default", queued("job-1"))
    here = NamespaceWatch(api_of(cluster, tmp_path), "default")
    here.changes(None, reference("job-1"))
    edit(cluster, "Job", "kinetic-job-1", {"spec": {"suspend": False}})

    def has_succeeded() -> bool:
        here.changes(None, reference("job-1"))  # somebody still wants to know
        return status_in(here, "job-1") is JobStatus.SUCCEEDED

    wait_for(has_succeeded)
    here.close()


def test_a_refusal_of_its_pods_is_seen(cluster: FakeCluster, tmp_path: Path) -> None:
    """Also while the job waits for its second accelerator, whose Job has a name of its own."""
    for name in ("kinetic-job-1", "kinetic-job-1-choice-1"):
        job = queued("job-1")
        labels = {**job["metadata"]["labels"], "kinetic.dev/choice": name[-1:] if "choice" in name else "0"}
        cluster.objects.create("Job", "default", {**job, "metadata": {"name": name, "labels": labels}})
    here = NamespaceWatch(api_of(cluster, tmp_path), "default")
    here.changes(None, reference("job-1", choices="tpu-v6e-8,gpu-h100-1"))
    for name in ("kinetic-job-1-choice-1", "kinetic-job-2"):
        cluster.objects.create("Event", "default", refusal(name))

    def told() -> list[str]:
        found = here.get("job-1")
        assert found is not None
        assert found[0]["metadata"]["name"] == "kinetic-job-1-choice-1"
        conditions = (found[0].get("status") or {}).get("conditions") or ()
        return [each["message"] for each in conditions if each["type"] == FAILED_CREATE]

    wait_for(lambda: told() == ["no"])
    assert cluster.faults.count("job-2") == 0
    here.close()


def test_the_worker_of_a_call_is_watched_with_it(cluster: FakeCluster, tmp_path: Path) -> None:
    """Its state is that of the call, which is looked at five times a second."""
    populate(cluster, 3)
    call = queued("job-1")
    call["metadata"]["labels"] = {**call["metadata"]["labels"], WORKER: "other-1"}
    cluster.objects.create("Job", "default", call)
    here = NamespaceWatch(api_of(cluster, tmp_path), "default")
    here.changes(None, reference("job-1", worker="other-1"))
    assert [name for name in ("job-1", "other-0", "other-1", "other-2") if here.get(name)] == [
        "job-1",
        "other-1",
    ]
    asked = len(cluster.faults.requests)
    assert here.get("other-1") is not None
    assert len(cluster.faults.requests) == asked
    here.close()


def test_pods_of_a_set_are_watched_by_its_job(cluster: FakeCluster, tmp_path: Path) -> None:
    """They belong to a LeaderWorkerSet, and have the job's label."""
    cluster.freeze()
    job = queued("job-1")
    labels = job["metadata"]["labels"]
    of_set = {"name": "kinetic-job-1", "labels": {**labels, LEADER_WORKER_SET: "true"}}
    cluster.objects.create("Job", "default", {**job, "metadata": of_set})
    here = NamespaceWatch(api_of(cluster, tmp_path), "default")
    here.changes(None, reference("job-1", backend="pathways"))
    assert here.get("job-1") is not None
    pod = {"metadata": {"name": "kinetic-job-1-0", "labels": labels}, "spec": job["spec"]["template"]["spec"]}
    cluster.objects.create("Pod", "default", pod)
    wait_for(lambda: len((here.get("job-1") or ({}, []))[1]) == 1)
    here.close()

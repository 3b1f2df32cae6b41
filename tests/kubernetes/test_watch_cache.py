"""The cache of a namespace's jobs: what it keeps in memory, and what happens when it is closed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.backends.kubernetes.client import ClusterApi, Expired
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.watch_cache import SharedParts, WatchCache
from kinetic_core.testing import FakeCluster
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

"""What the fake cluster can do that a real one does not do on request: every end of a pod, every fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.backends.kubernetes.client import ClusterApi, Expired
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.names import JOB_ID
from kinetic_core.backends.kubernetes.objects import Pod
from kinetic_core.backends.kubernetes.verdict import observe
from kinetic_core.backends.kubernetes.watch_cache import WatchCache
from kinetic_core.counters import listen
from kinetic_core.errors import ClusterError, ClusterUnreachable
from kinetic_core.job import JobStatus
from kinetic_core.testing import (
    FakeCluster,
    PodBehaviour,
    exits,
    is_evicted,
    is_preempted,
    runs_until_stopped,
    stays_pending,
    succeeds,
)
from tests.conftest import wait_for

Object = dict[str, Any]
Make = Callable[..., tuple[FakeCluster, ClusterApi]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Make]:
    opened: list[FakeCluster] = []

    def make(behave: Callable[[Object], PodBehaviour]) -> tuple[FakeCluster, ClusterApi]:
        fake = FakeCluster(behave)
        opened.append(fake)
        return fake, ClusterApi(Target(str(fake.write_kubeconfig(tmp_path / f"{len(opened)}"))), patience=5.0)

    yield make
    for each in opened:
        each.close()


def job(name: str = "one", *, indexes: int = 1, **spec: Any) -> Object:
    ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    template = {
        "metadata": {"labels": {"app": "kinetic", JOB_ID: name}},
        "spec": {"containers": [{"name": "kinetic-worker", "image": "python"}]},
    }
    return {
        "metadata": {"name": f"kinetic-{name}", "labels": {"app": "kinetic", JOB_ID: name}},
        "spec": {
            "completionMode": "Indexed",
            "completions": indexes,
            "parallelism": indexes,
            "backoffLimitPerIndex": 0,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": [ignore]},
            "template": template,
            **spec,
        },
    }


def status(api: ClusterApi, name: str = "one") -> Object:
    found = api.get("Job", "default", f"kinetic-{name}")
    assert found is not None
    told: Object = found.get("status", {})
    return told


def pods(api: ClusterApi) -> list[Object]:
    found: list[Object] = api.list("Pod", "default")["items"]
    return found


def ends(api: ClusterApi, name: str = "one") -> set[str]:
    def over() -> set[str]:
        return {each["type"] for each in status(api, name).get("conditions", ())} & {"Complete", "Failed"}

    wait_for(over)
    return over()


@pytest.mark.parametrize("disruption", [is_evicted, is_preempted])
def test_a_disruption_costs_no_retry(cluster: Make, disruption: Callable[[], PodBehaviour]) -> None:
    _, api = cluster(lambda pod: succeeds() if Pod(pod).attempt == 2 else disruption())
    api.create("Job", "default", job())
    assert ends(api) == {"Complete"}
    assert sorted(Pod(pod).attempt for pod in pods(api)) == [0, 1, 2]
    assert status(api)["failed"] == 0


def test_a_pod_that_never_starts_is_pending(cluster: Make) -> None:
    _, api = cluster(lambda _pod: stays_pending())
    api.create("Job", "default", job())
    wait_for(lambda: [pod["status"].get("phase") for pod in pods(api) if "status" in pod] == ["Pending"])
    assert observe(api.get("Job", "default", "kinetic-one") or {}, pods(api)).reason == "ContainerCreating"
    api.delete("Job", "default", "kinetic-one")
    wait_for(lambda: pods(api) == [])


def test_indexes_are_pods_of_their_own(cluster: Make) -> None:
    def behave(pod: Object) -> PodBehaviour:
        index = int(pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"])
        return exits(1, message="broken") if index == 3 else succeeds()

    _, api = cluster(behave)
    api.create("Job", "default", job(indexes=8, parallelism=2))
    assert ends(api) == {"Failed"}
    told = status(api)
    assert (told["completedIndexes"], told["failedIndexes"], told["succeeded"]) == ("0-2,4-7", "3", 7)
    assert told["conditions"][-1]["reason"] == "FailedIndexes"


def test_the_first_failed_index_may_end_the_job(cluster: Make) -> None:
    _, api = cluster(
        lambda pod: exits(1) if pod["metadata"]["name"].startswith("kinetic-one-1-") else runs_until_stopped()
    )
    api.create("Job", "default", job(indexes=3, maxFailedIndexes=0))
    assert ends(api) == {"Failed"}
    assert status(api)["conditions"][-1]["reason"] == "MaxFailedIndexesExceeded"
    assert [pod for pod in pods(api) if pod["status"]["phase"] == "Running"] == []


def test_requests_fail_as_scripted(cluster: Make) -> None:
    fake, api = cluster(lambda _pod: succeeds())
    fake.faults.lose_reply("POST .*/jobs$")
    with pytest.raises(ClusterUnreachable):
        api.create("Job", "default", job())
    with pytest.raises(ClusterError) as caught:
        api.create("Job", "default", job())
    assert caught.value.status == 409
    fake.faults.answer("GET .*/jobs/", 503, times=2)
    assert ends(api) == {"Complete"}
    assert fake.faults.unmet == ()
    assert fake.faults.count("POST .*/jobs$") == 2


def test_a_forgotten_history_is_an_expired_watch(cluster: Make) -> None:
    fake, api = cluster(lambda _pod: succeeds())
    version = api.list("Pod", "default")["metadata"]["resourceVersion"]
    fake.objects.forget()
    with pytest.raises(Expired):
        list(api.watch("Pod", "default", {}, version, 1))


@pytest.mark.promise("page: Watch re-lists")
def test_an_informer_that_begins_anew_is_counted(cluster: Make) -> None:
    fake, api = cluster(lambda _pod: succeeds())
    told: list[tuple[str, str]] = []
    listen(lambda event, kinds: told.append((event, kinds["kind"])))
    fake.faults.answer(r"/pods\?.*watch=true", 410, body=b'{"message": "too old"}', times=2)
    informer = WatchCache(api, "default")
    informer.changes(None)
    wait_for(lambda: told.count(("watch.relists", "Pod")) == 2)
    informer.close()


def test_the_informer_outlives_everything_at_once(cluster: Make) -> None:
    fake, api = cluster(lambda pod: is_preempted(0.2) if Pod(pod).attempt < 2 else succeeds(0.2))
    fake.faults.answer("watch=true", 503, times=3)
    fake.faults.cut_reply("watch=true", 300, times=3)
    informer = WatchCache(api, "default")

    def observed() -> JobStatus | None:
        try:
            informer.changes(None)
        except ClusterError:
            return None  # it says why it has not started yet; who waits asks again
        found = informer.get("one")
        return observe(*found).status if found else None

    api.create("Job", "default", job())
    observed()
    fake.objects.forget()
    fake.disconnect()

    wait_for(lambda: observed() is JobStatus.SUCCEEDED)
    informer.close()
    assert status(api)["failed"] == 0


@pytest.mark.parametrize(("path", "code"), [("/nothing", 404), ("/api/v1/namespaces/default/gadgets", 404)])
def test_what_it_does_not_have_is_not_found(cluster: Make, path: str, code: int) -> None:
    _, api = cluster(lambda _pod: succeeds())
    with pytest.raises(ClusterError) as caught:
        api.call("GET", path)
    assert caught.value.status == code


def test_a_frozen_cluster_refuses_every_write(cluster: Make) -> None:
    fake, api = cluster(lambda _: stays_pending())
    api.create("Service", "default", {"metadata": {"name": "there"}})
    fake.freeze()
    writes: dict[str, Callable[[], object]] = {
        "POST Service": lambda: api.create("Service", "default", {"metadata": {"name": "new"}}),
        "PATCH Service there": lambda: api.patch("Service", "default", "there", {"spec": {}}),
        "DELETE Service there": lambda: api.delete("Service", "default", "there"),
    }
    for write in writes.values():
        with pytest.raises(ClusterError, match="the cluster is frozen"):
            write()
    assert fake.refused == list(writes)
    assert api.get("Service", "default", "there") is not None

"""The API server's own manners, which the fake has too: names, patches, watches."""

from __future__ import annotations

import secrets
import time

import pytest

from kinetic_core.backends.kubernetes.client import Expired
from kinetic_core.backends.kubernetes.verdict import observe
from kinetic_core.backends.kubernetes.watch_cache import WatchCache
from kinetic_core.errors import ClusterError
from kinetic_core.job import JobStatus
from tests.conftest import wait_for
from tests.kubernetes.contract import (
    PATIENCE,
    STOPS,
    SUCCEEDS,
    Make,
    Object,
)


def test_a_deleted_job_takes_its_pods_with_it(world: Make) -> None:
    here = world(STOPS)
    name = here.create()
    here.running(name)
    assert here.api.delete("Job", here.namespace, name, uid="another") is False
    assert here.api.delete("Job", here.namespace, name) is True
    assert here.api.get("Job", here.namespace, name) is None
    wait_for(lambda: here.pods(name) == [], PATIENCE)
    assert here.api.delete("Job", here.namespace, name) is False


def test_names_are_unique_and_refusals_have_their_status(world: Make) -> None:
    here = world(SUCCEEDS)
    job = here.manifest()
    made = here.api.create("Job", here.namespace, job)
    assert {"uid", "resourceVersion", "creationTimestamp"} <= made["metadata"].keys()
    assert made["status"] == {}
    for body, namespace, status in (
        (job, here.namespace, 409),
        ({**job, "metadata": {**job["metadata"], "namespace": "nowhere"}}, "nowhere", 404),
        ({**job, "metadata": {"labels": {}}}, here.namespace, 422),
    ):
        with pytest.raises(ClusterError) as caught:
            here.api.create("Job", namespace, body)
        assert caught.value.status == status
    assert here.api.get("Job", here.namespace, "nothing") is None
    assert here.api.patch("Job", here.namespace, "nothing", {}) is None
    assert here.api.list("Job", "nowhere")["items"] == []
    assert here.api.pod_log(here.namespace, "nothing", "c") is None


def test_an_object_of_the_name_is_read(world: Make) -> None:
    here = world(STOPS)
    job = here.manifest()
    (made, is_new), (found, is_again) = (
        here.api.create_or_read("Job", here.namespace, job) for _ in range(2)
    )
    assert (is_new, is_again) == (True, False)
    assert found["metadata"]["uid"] == made["metadata"]["uid"]
    with pytest.raises(ClusterError, match="nowhere"):
        here.api.create_or_read(
            "Job", "nowhere", {**job, "metadata": {**job["metadata"], "namespace": "nowhere"}}
        )


def test_a_patch_merges_and_makes_a_new_version(world: Make) -> None:
    here = world(STOPS)
    name = here.create()
    before = here.job(name)
    after = here.api.patch("Job", here.namespace, name, {"metadata": {"annotations": {"a": "1", "b": "2"}}})
    assert after is not None
    assert after["metadata"]["annotations"].items() >= {**before["metadata"]["annotations"], "a": "1"}.items()
    after = here.api.patch("Job", here.namespace, name, {"metadata": {"annotations": {"a": None}}})
    assert after is not None
    assert "a" not in after["metadata"]["annotations"]
    assert after["metadata"]["annotations"]["b"] == "2"
    assert after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]
    here.api.delete("Job", here.namespace, name)


def test_a_watch_tells_what_happens_after_a_list(world: Make) -> None:
    here = world(SUCCEEDS)
    query = {"labelSelector": "app=kinetic"}
    version = here.api.list("Job", here.namespace, query)["metadata"]["resourceVersion"]
    name = here.create()
    here.ended(name)
    there = here.api.watch("Job", here.namespace, query, "", 1)
    assert [item["metadata"]["name"] for event, item in there if event == "ADDED"].count(name) == 1
    here.api.delete("Job", here.namespace, name)
    seen: list[tuple[str, Object]] = []
    for event, item in here.api.watch("Job", here.namespace, query, version, 10):
        if event == "BOOKMARK" or item["metadata"]["name"] == name:
            seen.append((event, item))
        if event == "DELETED" and item["metadata"]["name"] == name:
            break
    events = [event for event, _ in seen if event != "BOOKMARK"]
    assert events[0] == "ADDED"
    assert events[-1] == "DELETED"
    assert set(events[1:-1]) == {"MODIFIED"}
    middle = seen[len(seen) // 2][1]["metadata"]["resourceVersion"]
    again = here.api.watch("Job", here.namespace, query, middle, 1)
    assert [event for event, item in again if event == "ADDED" and item["metadata"]["name"] == name] == []


def test_a_list_read_in_pages_is_whole_and_can_be_watched_from(world: Make) -> None:
    here = world(STOPS)
    mark = secrets.token_hex(4)
    query = {"labelSelector": f"paged={mark}"}
    metadata = [{"name": f"paged-{mark}-{number}", "labels": {"paged": mark}} for number in range(5)]
    for each in metadata:
        here.api.create("ConfigMap", here.namespace, {"metadata": each})
    assert here.api.list("ConfigMap", here.namespace, {**query, "limit": "2"})["metadata"]["continue"]
    found = here.api.list("ConfigMap", here.namespace, query, page_size=2)
    assert [item["metadata"]["name"] for item in found["items"]] == [each["name"] for each in metadata]
    for each in metadata:
        here.api.delete("ConfigMap", here.namespace, str(each["name"]))
    version = found["metadata"]["resourceVersion"]
    later = here.api.watch("ConfigMap", here.namespace, query, version, 1)
    assert [event for event, _ in later if event != "BOOKMARK"] == ["DELETED"] * len(metadata)


def test_a_watch_ends_by_itself(world: Make) -> None:
    here = world(SUCCEEDS)
    version = here.api.list("Pod", here.namespace)["metadata"]["resourceVersion"]
    began = time.monotonic()
    list(here.api.watch("Pod", here.namespace, {}, version, 1))
    assert time.monotonic() - began > 0.5


@pytest.mark.alone  # a server that has just been set up forgets its first version after five minutes only
def test_a_watch_that_is_too_old_is_refused(world: Make) -> None:
    here = world(SUCCEEDS)
    with pytest.raises(Expired):
        list(here.api.watch("Pod", here.namespace, {}, "1", 1))


@pytest.mark.promise("gke: `kinetic_core.testing`: store, fake cluster with the real one's contract")
def test_the_informer_follows_a_job_to_its_end(world: Make) -> None:
    here = world(SUCCEEDS)
    informer = WatchCache(here.api, here.namespace)
    token, _ = informer.changes(None)
    name = here.create()
    job_id = name.removeprefix("kinetic-")

    def has_succeeded() -> bool:
        informer.changes(token)
        found = informer.get(job_id)
        return found is not None and observe(*found).status is JobStatus.SUCCEEDED

    wait_for(has_succeeded, PATIENCE)
    changed = informer.changes(token)[1]
    informer.close()
    assert changed is not None
    assert job_id in changed


def test_what_is_applied_is_made_kept_and_not_taken_from_others(world: Make) -> None:
    here = world(SUCCEEDS)
    name = f"applied-{secrets.token_hex(4)}"
    wanted = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}}
    asked = ("ConfigMap", here.namespace, name)
    here.api.apply(*asked, wanted, dry_run=True)
    assert here.api.get(*asked) is None
    made = here.api.apply(*asked, wanted)
    assert made["data"] == {"a": "1"}
    again = here.api.apply(*asked, wanted)
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    here.api.delete(*asked)
    here.api.create("ConfigMap", here.namespace, {**wanted, "data": {"a": "theirs"}})
    with pytest.raises(ClusterError) as caught:
        here.api.apply(*asked, wanted)
    kept = here.api.get(*asked)
    assert kept is not None
    assert (caught.value.status, kept["data"]) == (409, {"a": "theirs"})
    assert here.api.apply(*asked, wanted, force=True)["data"] == {"a": "1"}
    with pytest.raises(ClusterError) as caught:
        here.api.apply("ConfigMap", "nowhere", name, wanted)
    assert caught.value.status == 404
    here.api.delete(*asked)

"""What clusters say: two requests however many jobs, and a sentence where nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.batch_of_task import is_over
from airflow_provider.batch_record import BatchRecord
from airflow_provider.ui.board import Failures, board
from airflow_provider.ui.live import Answers, live_batch, live_rows
from airflow_provider.ui.places import Places, Remembered
from airflow_provider.ui.rows import Instance, LiveBatch
from kinetic_core.backends.kubernetes.names import CANCELLED
from kinetic_core.errors import ClusterUnreachable, ConfigurationError
from kinetic_core.jobs.prepare import address
from kinetic_core.jobs.submit import submit
from kinetic_core.settings import Settings
from kinetic_core.testing import kubelet as behaviours
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.airflow_provider.batches import home, start, until_told
from tests.airflow_provider.records_of_jobs import ended, identity, instance, reference
from tests.batches.places import Place
from tests.conftest import wait_for


class Cluster:
    """A backend whose namespaces are dicts; it counts who asks."""

    name = "gke"
    key = "the cluster"
    cluster = ("p", "z", "c")

    def __init__(self, namespace: str = "default") -> None:
        self.namespace = namespace
        self.store = MemoryObjectStore("memory://jobs")
        self.jobs: dict[str, Any] = {}
        self.asked: list[str] = []
        self.trouble: Exception | None = None

    def changes(self, namespace: str, since: object) -> tuple[object, None]:
        return since, None

    def all(self, namespace: str, *, fresh: bool = True) -> Mapping[str, Any]:
        self.asked.append(f"{namespace}, listed" if fresh else namespace)
        if self.trouble is not None:
            raise self.trouble
        return self.jobs


def running(job_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    pod = {
        "metadata": {"name": job_id, "creationTimestamp": "2026-01-01T00:00:10Z"},
        "status": {"phase": "Pending"},
    }
    return {"metadata": {"creationTimestamp": "2026-01-01T00:00:05Z"}, "status": {}}, [pod]


def answers() -> Answers:
    return Answers(Remembered(3.0), Remembered(3.0), Remembered(3.0))


def look(
    cluster: Any, instances: Sequence[Instance], opened: Any = None
) -> tuple[list[dict[str, Any]], list[str]]:
    places = Places(lambda _: [Settings()], lambda name, _: (opened or (lambda _: cluster))(name))
    rows, troubles = asyncio.run(live_rows(instances, places, answers()))
    return rows, list(troubles)


def job_id(of: Instance) -> str:
    assert of.record is not None
    return of.record.reference.job_id


@pytest.mark.promise("page: No request per job")
def test_five_thousand_jobs_are_one_question() -> None:
    cluster = Cluster()
    instances = [instance(index) for index in range(5000)]
    cluster.jobs = {job_id(each): running(job_id(each)) for each in instances}
    rows, troubles = look(cluster, instances)
    assert cluster.asked == ["default"]
    assert troubles == []
    assert {each["status"] for each in rows} == {"PENDING"}
    assert [each["name"] for each in rows[4999]["phases"]] == ["upload", "queue", "scheduling"]
    assert [each["map_index"] for each in rows] == list(range(5000))


def test_nobody_is_asked_about_what_has_ended() -> None:
    cluster = Cluster()
    done = [instance(0, "success", ended()), Instance("train", 1, "", "queued", 0, None)]
    rows, troubles = look(cluster, done)
    assert (cluster.asked, troubles) == ([], [])
    assert [each["status"] for each in rows] == ["SUCCEEDED", "NO_JOB"]


def test_a_cluster_is_asked_for_an_end_that_nobody_recorded() -> None:
    cluster = Cluster()
    marked = [instance(0, "failed"), instance(1, "failed")]
    (job, _) = cluster.jobs[job_id(marked[0])] = running(job_id(marked[0]))
    cancelled = {"type": "Failed", "status": "True", "lastTransitionTime": "2026-01-01T00:10:00Z"}
    job["metadata"].setdefault("annotations", {})[CANCELLED] = "true"
    job["status"]["conditions"] = [cancelled]
    rows, troubles = look(cluster, marked)
    assert (cluster.asked, troubles) == (["default"], [])
    assert [(each["status"], each["message"]) for each in rows] == [
        ("CANCELLED", "the job was cancelled"),
        ("UNKNOWN", "the task is failed; how its job ended was not recorded; its Job has gone"),
    ]


@pytest.mark.parametrize("trouble", [ClusterUnreachable("no route"), OSError("no route")])
def test_a_cluster_that_does_not_answer_is_told(trouble: Exception) -> None:
    cluster = Cluster()
    cluster.trouble = trouble
    rows, troubles = look(cluster, [instance(0), instance(1, "success", ended())])
    assert troubles == ["cannot see the jobs of namespace default of backend gke: no route"]
    assert [(each["status"], each["message"]) for each in rows] == [
        ("UNKNOWN", troubles[0]),
        ("SUCCEEDED", "the outcome is committed"),
    ]


@pytest.mark.promise("page: Job ids from another deployment")
def test_a_job_of_another_deployment_is_never_looked_for() -> None:
    cluster = Cluster()
    of_others = [
        instance(0, store_uri="gs://theirs"),
        instance(1, project="p", zone="z", cluster_name="other"),
        instance(2, backend="mars"),
    ]
    rows, troubles = look(cluster, of_others)
    assert cluster.asked == []
    assert [each["status"] for each in rows] == ["UNKNOWN"] * 3
    assert troubles == [each["message"] for each in rows]
    assert "gs://theirs" in troubles[0]
    assert "other" in troubles[1]
    assert "mars" in troubles[2]


def test_a_server_without_settings_says_what_to_set() -> None:
    def opened(_: str) -> Any:
        raise ConfigurationError("backend 'gke' needs a bucket: set KINETIC_BUCKET")

    rows, troubles = look(None, [instance(0)], opened)
    assert troubles == ["backend 'gke' needs a bucket: set KINETIC_BUCKET"]
    assert rows[0]["message"] == troubles[0]


@pytest.mark.promise("page: A bounded number of requests")
def test_a_dag_with_a_hundred_namespaces_makes_few_questions() -> None:
    clusters = [Cluster(f"n{index}") for index in range(100)]
    places = Places(
        lambda _: [Settings(namespace=each.namespace) for each in clusters],
        lambda _, settings: clusters[int(settings.namespace[1:])],  # type: ignore[arg-type, return-value]
    )
    instances = [instance(index, namespace=f"n{index}") for index in range(100)]
    rows, _ = asyncio.run(live_rows(instances, places, answers()))
    assert sum(len(each.asked) for each in clusters) == 8
    assert "its cluster was not asked" in {each["message"] for each in rows}


def test_a_job_that_has_gone_is_told_from_one_that_is_not_known() -> None:
    (only,), _ = look(Cluster(), [instance(0)])
    assert only["message"] == "its Job has gone; the task has not said yet how it ended"


@pytest.mark.promise("page: State, reason, attempts")
def test_a_batch_of_which_nothing_runs_waits(tmp_path: Path) -> None:
    """And says why, in the list and on its board."""
    here = Place(tmp_path, lambda _: behaviours.cannot_be_scheduled("no nodes"))
    whole, _ = here.submit([1, 2, 3])
    told = BatchRecord(whole, 3, "", 1, 1)
    one = Instance("embed", -1, "", "deferred", 1, None, batch=told)

    def rows() -> list[tuple[str, str, str]]:
        (listed,), troubles = look(here.backend, [one])
        assert troubles == []
        live = asyncio.run(live_batch(told, here.backend, answers()))
        assert isinstance(live, LiveBatch)
        shown = board(one, told, here.backend, 0, Failures(), live)
        return [(each["status"], each["reason"], each["message"]) for each in (listed, shown)]

    wait_for(lambda: rows() == [("PENDING", "Unschedulable", "3 inputs: no nodes")] * 2)
    here.close()


def test_an_account_that_may_not_watch_sees_its_jobs(tmp_path: Path) -> None:
    """The page lists them then, whenever somebody looks: what it shows is never what a watch has missed."""
    here = Place(tmp_path, lambda _: behaviours.cannot_be_scheduled("no nodes"))
    here.fake.faults.answer(r"^GET \S*/jobs\?\S*watch=true", 403, times=None)
    one = instance(0, store_uri=here.store.uri)
    submit(address(here.packed(), (2,), job_id=job_id(one)))

    def told() -> tuple[str, str]:
        (listed,), troubles = look(here.backend, [one])
        assert troubles == []
        return listed["status"], listed["message"]

    def lists_at_each_look() -> bool:
        lists = r"^GET \S*/jobs\?(?!\S*watch=true)"
        before = here.fake.faults.count(lists)
        assert told() == ("PENDING", "no nodes")
        return here.fake.faults.count(lists) > before

    wait_for(lambda: told() == ("PENDING", "no nodes"))
    wait_for(lists_at_each_look)  # the thread that watches has read by then that it may not
    (job,) = here.jobs()
    here.fake.objects.remove("Job", "default", job["metadata"]["name"])
    assert told() == ("UNKNOWN", "its Job has gone; the task has not said yet how it ended")
    here.close()


@pytest.mark.usefixtures("local_jobs")
def test_a_batch_of_this_machine_waits_for_its_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_slot_is_free: Callable[[], None]
) -> None:
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(Path(__file__).parents[1]))  # where its function is
    who = replace(identity("embed"), run_began=tmp_path.name)
    whole = start(who, range(3), tmp_path, function=until_told).reference
    one = Instance("embed", -1, "", "deferred", 1, None, batch=BatchRecord(whole, 3, who.run_began, 1, 1))

    def status() -> tuple[str, str]:
        (told,), _ = look(home(whole), [one])
        return told["status"], told["message"].partition(":")[0]

    wait_for(lambda: status() == ("PENDING", "3 inputs"))
    no_slot_is_free()
    wait_for(lambda: status() == ("RUNNING", "3 inputs"))
    wait_for(lambda: look(home(whole), [one])[0][0]["run_seconds"] > 0)
    (told,), _ = look(home(whole), [one])
    assert min(told["waited"], told["ran"]) > 0
    (tmp_path / "go").touch()
    wait_for(lambda: is_over(home(whole), whole))


def test_a_batch_whose_cluster_is_unknown_says_so() -> None:
    told = BatchRecord(reference("grp-a", group_id="grp-a", store_uri="gs://theirs"), 3, "", 1, 1)
    one = Instance("embed", -1, "", "deferred", 1, None, batch=told)
    (shown,), troubles = look(Cluster(), [one])
    assert (shown["status"], [shown["message"]]) == ("UNKNOWN", troubles)
    assert "gs://theirs" in troubles[0]
    (over,), troubles = look(Cluster(), [replace(one, batch=replace(told, failed=0))])
    assert (over["status"], troubles) == ("SUCCEEDED", [])

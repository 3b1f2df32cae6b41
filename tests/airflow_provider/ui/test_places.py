"""Where the page looks: in the places of the server's settings and of a task's connection, nowhere else."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.access import ENVIRONMENT, Access
from airflow_provider.ui.live import Answers, live_rows
from airflow_provider.ui.places import Elsewhere, Places, Remembered, settings_of
from kinetic_core.errors import ConfigurationError
from kinetic_core.settings import Account, Settings
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.airflow_provider.records_of_jobs import instance, record, reference

BUCKETS = {"": "ours", "kinetic_theirs": "theirs"}


@dataclass
class World:
    """Connections with a bucket each, and the backends that were opened; it counts who asks for what."""

    buckets: Mapping[str, str] = field(default_factory=lambda: BUCKETS)
    read: list[str] = field(default_factory=list)
    opened: list[Settings] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)

    def places(self) -> Places:
        return Places(self._read, lambda _, settings: self._open(settings))  # type: ignore[arg-type, return-value]

    def _read(self, access: Access) -> list[Settings]:
        conn_id = access.conn_id
        self.read.append(conn_id)
        if conn_id not in self.buckets:
            raise ConfigurationError(f"there is no connection {conn_id!r}")
        return [Settings(bucket=self.buckets[conn_id], google_account=Account(conn_id, "1", object()))]

    def _open(self, settings: Settings) -> Any:
        self.opened.append(settings)
        return Place(self, settings)


class Place:
    """A backend in which nothing runs."""

    name = "gke"
    cluster = None

    def __init__(self, world: World, settings: Settings) -> None:
        self.key, self.namespace = settings.bucket, settings.namespace
        self.store = MemoryObjectStore(f"memory://{settings.bucket or settings.namespace}")
        self._world = world

    def changes(self, namespace: str, since: object | None) -> tuple[int, set[str]]:
        return 0, set()

    def all(self, namespace: str, *, fresh: bool = True) -> Mapping[str, Any]:
        self._world.asked.append((self.key, namespace))
        return {}


def ours(index: int = -1, conn_id: str = "", bucket: str = "ours", **others: Any) -> Any:
    return instance(index, conn_id=conn_id, store_uri=f"memory://{bucket}", **others)


def look(world: World, *instances: Any, times: int = 1) -> tuple[list[dict[str, Any]], list[str]]:
    async def scene() -> Any:
        places = world.places()
        for _ in range(times):
            rows, troubles = await live_rows(
                instances, places, Answers(Remembered(0.0), Remembered(0.0), Remembered(0.0))
            )
        return rows, list(troubles)

    found: tuple[list[dict[str, Any]], list[str]] = asyncio.run(scene())
    return found


@pytest.mark.promise("page: Server side, through the connection's credentials")
def test_a_job_is_looked_for_as_its_connection_says() -> None:
    world = World()
    _, troubles = look(world, ours(0), ours(1, "kinetic_theirs", "theirs"))
    assert troubles == []
    assert sorted(world.asked) == [("ours", "default"), ("theirs", "default")]  # side by side
    accounts = [each.google_account.name if each.google_account else "" for each in world.opened]
    assert sorted(accounts) == ["", "kinetic_theirs"]


@pytest.mark.promise("page: Cached")
def test_a_connection_is_read_once_for_many_jobs_and_looks() -> None:
    world = World()
    jobs = [ours(index, "kinetic_theirs", "theirs") for index in range(500)]
    look(world, *jobs, times=3)
    assert world.read == ["kinetic_theirs"]
    assert len(world.opened) == 1
    assert len(world.asked) == 3


@pytest.mark.promise("page: Connection missing")
def test_a_missing_connection_is_told_beside_the_others() -> None:
    world = World()
    rows, troubles = look(world, ours(0), ours(1, "gone"), ours(2, "gone"))
    assert troubles == ["there is no connection 'gone'"]
    assert [each["message"] for each in rows[1:]] == troubles * 2
    assert world.asked == [("ours", "default")]


@pytest.mark.attack
def test_a_connection_outranks_the_place_of_the_record() -> None:
    world = World()
    rows, troubles = look(world, ours(0, "kinetic_theirs", "ours"))
    assert world.asked == []
    assert "memory://theirs" in troubles[0]
    assert rows[0]["status"] == "UNKNOWN"


@pytest.mark.promise("page: A bounded number of requests")
def test_a_dag_with_a_hundred_connections_has_few_of_them_read() -> None:
    world = World({f"c{number}": "ours" for number in range(100)})
    rows, _ = look(world, *(ours(number, f"c{number}") for number in range(100)))
    assert len(world.read) == 8
    assert rows[-1]["message"] == "its cluster was not asked"


def test_without_a_bucket_each_namespace_has_its_own_place() -> None:
    of, settings = World().places().of, [Settings(), Settings(namespace="research")]
    told = record(namespace="research", store_uri="memory://research").reference
    assert of(told, settings).store.uri == "memory://research"
    with pytest.raises(Elsewhere, match="memory://default"):
        of(record(store_uri="memory://research").reference, settings)


@pytest.mark.attack
@pytest.mark.parametrize("bucket", ["ours", ""])
def test_a_namespace_that_only_a_record_names_is_not_looked_at(bucket: str) -> None:
    """The server may list it, with rights that whoever wrote the DAG has not."""
    world, store = World({"": bucket}), {"": "theirs", "ours": "ours"}[bucket]
    rows, troubles = look(world, ours(0, bucket=store, namespace="theirs"))
    assert world.asked == []
    assert "jobs of namespace theirs are not known here, default is set" in troubles[0]
    assert rows[0]["status"] == "UNKNOWN"


@pytest.mark.attack
def test_a_job_of_another_cluster_says_what_to_do() -> None:
    class Named(Place):
        cluster = ("p", "z", "ours")  # type: ignore[assignment]

    opened: Callable[..., Any] = lambda _, settings: Named(World(), settings)  # noqa: E731
    job = reference("job-1", store_uri="memory://b", project="p", zone="z", cluster_name="theirs")
    with pytest.raises(Elsewhere, match=r"cluster theirs.*use a connection"):
        Places(opened=opened).of(job, [Settings(bucket="b")])


def test_a_job_at_the_place_of_a_profile_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "profiles.json"
    other = {"project": "p", "zone": "z", "cluster": "other", "bucket": "b"}
    file.write_text(json.dumps({"current": None, "profiles": {"other": other}}))
    monkeypatch.setenv("KINETIC_PROFILES_FILE", str(file))
    monkeypatch.setenv("KINETIC_PROJECT", "p")
    monkeypatch.setenv("KINETIC_BUCKET", "b")

    class Named(Place):
        def __init__(self, _: str, settings: Settings) -> None:
            super().__init__(World(), settings)
            self.cluster = (settings.project, settings.zone, settings.cluster)  # type: ignore[assignment]

    looked = Places(opened=Named)  # type: ignore[arg-type]
    known = settings_of(ENVIRONMENT)
    for cluster in ("kinetic-cluster", "other"):
        zone = {"kinetic-cluster": "us-central1-a", "other": "z"}[cluster]
        job = reference("job-1", store_uri="memory://b", project="p", zone=zone, cluster_name=cluster)
        assert looked.of(job, known).cluster == ("p", zone, cluster)
    job = reference("job-1", store_uri="memory://b", project="p", zone="z", cluster_name="third")
    with pytest.raises(Elsewhere, match="cluster third"):
        looked.of(job, known)


def test_a_connection_that_takes_too_long_keeps_nobody() -> None:
    may = threading.Event()

    def slow(_: Access) -> list[Settings]:
        may.wait(90)
        return [Settings(bucket="ours")]

    async def scene() -> None:
        looked = Places(slow, patience=0.01)
        with pytest.raises(ConfigurationError, match="'slow' could not be read within"):
            await looked.settings(Access("slow"))
        may.set()
        while not (found := await ready(looked)):
            await asyncio.sleep(0.01)
        assert found[0].bucket == "ours"

    async def ready(looked: Places) -> Sequence[Settings]:
        try:
            return await looked.settings(Access("slow"))
        except ConfigurationError:  # the answer is on its way
            return ()

    asyncio.run(scene())

"""A watcher of outputs tells each success once, whatever dies and whoever writes to the store."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core._runner import object_names, wire
from kinetic_core.connections import Connections, default_connections
from kinetic_core.errors import StoreError
from kinetic_core.job import JobReference
from kinetic_core.jobs.cancel import cleanup, index_object
from kinetic_core.jobs.listing import index_metadata
from kinetic_core.jobs.outputs_watcher import OutputsWatcher, RecentEntries, StoredOutputs
from kinetic_core.jobs.signing import job_key
from kinetic_core.testing import MemoryObjectStore

HOUR, DAY = 3600.0, 86_400.0


class Place:
    """A backend whose jobs have all ended, with a store in memory. Files of outputs are below `folder`."""

    name, cluster, namespace = "local", None, None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = MemoryObjectStore("file:///store")
        self.connections: Connections = default_connections()

    def get(self, _namespace: str, _job_id: str) -> None:
        return None

    def remove(self, _namespace: str, *job_ids: str) -> None:
        """Remove nothing: no Job is left."""

    def signing_secret(self, _namespace: str, *, make: bool = False) -> bytes:
        del make
        return bytes(32)

    def submit(self, number: int, function: str = "train", at: float | None = None) -> JobReference:
        """Store what a submitter stores."""
        job_id = f"job-{number:016x}"
        created = datetime.fromtimestamp(time.time() if at is None else at, UTC).replace(tzinfo=None)
        told = JobReference(
            job_id=job_id,
            backend="local",
            project="",
            cluster_name="",
            zone="",
            namespace="n",
            bucket_name="",
            k8s_name=f"kinetic-{job_id}",
            image_uri="",
            accelerator="cpu",
            func_name=function,
            display_name="",
            created_at=f"{created.isoformat()}Z",
            store_uri=self.store.uri,
            spec_digest="d",
            output_dir=str(self.folder / job_id),
        )
        self.list_as(told)
        return told

    def list_as(self, told: JobReference, **changed: Any) -> None:
        """Store handle and index entry, as anybody can who writes to the store."""
        handle = {**told.to_dict(), **changed}
        entry = index_object(JobReference.from_dict(handle))
        metadata = index_metadata(JobReference.from_dict(handle))
        for name, content, about in (
            (object_names.handle(told.job_id), json.dumps(handle).encode(), None),
            (entry, b"", metadata),
        ):
            self.store.delete(name)
            self.store.create_if_absent(name, content, about)

    def end(
        self,
        job: JobReference,
        *files: str,
        state: str = "succeeded",
        at: float | None = None,
        key: bytes | None = None,
    ) -> bytes:
        """Store what the job's runner stores; with another `key`, what somebody else does."""
        for file in files:
            path = self.folder / job.job_id / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        key_id, own = job_key(self, job)  # type: ignore[arg-type]  # as much of a backend as this needs
        header: Mapping[str, object] = {
            "protocol": wire.PROTOCOL,
            "job_id": job.job_id,
            "key_id": key_id,
            "state": state,
            "times": {"finished": time.time() if at is None else at},
        }
        frame = wire.encode_frame(header, {}, bytes.fromhex(own) if key is None else key)
        self.put(object_names.result(job.job_id), frame)
        return frame

    def put(self, name: str, content: bytes) -> None:
        """Overwrite an object."""
        self.store.delete(name)
        self.store.create_if_absent(name, content)


class Looking:
    """A watcher in a process of its own, which settles what it tells if it lives long enough."""

    def __init__(self, place: Place, pattern: str = "*.ckpt", who: str = "w", **more: Any) -> None:
        self.place, self.entries = place, more.pop("entries", RecentEntries())
        self.watcher = OutputsWatcher("train", pattern, who, **more)

    def look(self, age: float = 0.0) -> list[StoredOutputs]:
        return self.watcher.look(self.place, self.entries, age)  # type: ignore[arg-type]

    def told(self, *, settled: bool = True) -> list[str]:
        found = self.look()
        for each in found if settled else ():
            self.watcher.settle(self.place, each)  # type: ignore[arg-type]
        return [each.job_id for each in found]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "outputs")


def test_a_success_is_told_once_with_its_names(place: Place) -> None:
    looking = Looking(place)
    assert looking.told() == []
    job = place.submit(1)
    assert looking.told() == []
    place.end(job, "a.ckpt", "deep/b.ckpt", "log.txt")
    (found,) = looking.look()
    assert found.to_dict() == {
        "job_id": job.job_id,
        "function": "train",
        "uri": (place.folder / job.job_id).as_uri(),
        "names": ["a.ckpt", "deep/b.ckpt"],
        "more": False,
        "finished_at": pytest.approx(time.time(), abs=60),
    }
    assert looking.told() == []


def test_what_failed_or_does_not_match_is_not_told(place: Place) -> None:
    assert Looking(place).told() == []
    place.end(place.submit(1), "a.ckpt", state="failed")
    place.end(place.submit(2), "a.txt")
    place.end(place.submit(3))
    place.end(place.submit(4, "evaluate"), "a.ckpt")
    assert Looking(place).told() == []
    place.store.requests.clear()
    assert Looking(place).told() == []
    examined = [name for kind, name in place.store.requests if kind == "read" and name.startswith("jobs/")]
    assert examined == [], "what was decided is not examined again after a restart"


def test_only_jobs_that_end_later_are_told(place: Place) -> None:
    place.end(place.submit(1, at=time.time() - DAY), "a.ckpt", at=time.time() - HOUR)
    running = place.submit(2, at=time.time() - DAY)
    assert Looking(place).told() == []
    place.end(running, "a.ckpt")
    assert Looking(place).told() == [running.job_id], "also after a restart"
    assert Looking(place).told() == []


def test_a_restart_tells_what_was_not_settled(place: Place) -> None:
    Looking(place).told()
    first, second = place.submit(1), place.submit(2)
    place.end(first, "a.ckpt")
    assert Looking(place).told() == [first.job_id]
    place.end(second, "a.ckpt")
    dies = Looking(place)
    assert dies.told(settled=False) == [second.job_id]
    assert dies.told() == []
    assert Looking(place).told() == [second.job_id]
    assert Looking(place).told() == []


def test_what_ends_while_nobody_watches_is_told(place: Place) -> None:
    Looking(place).told()
    jobs = [place.submit(number) for number in range(250)]
    for job in jobs:
        place.end(job, "a.ckpt")
    looking = Looking(place)
    told = [looking.told() for _ in range(4)]
    assert [len(some) for some in told] == [100, 100, 50, 0]
    assert sorted(job_id for some in told for job_id in some) == [job.job_id for job in jobs]


def test_two_watchers_know_nothing_of_each_other(place: Place) -> None:
    shared = RecentEntries()
    every, some = (Looking(place, each, each, entries=shared) for each in ("*.ckpt", "last.*"))
    assert every.told() == some.told() == []
    first, last = place.submit(1), place.submit(2)
    place.end(first, "1.ckpt")
    place.end(last, "last.ckpt")
    place.store.requests.clear()
    assert [each.job_id for each in every.look(60)] == []  # an index of just now, which lacks both
    assert sorted(every.told()) == [first.job_id, last.job_id]
    assert [each.job_id for each in some.look(60)] == [last.job_id]
    assert place.store.requests.count(("list", "index/")) == 1


def test_a_thousand_old_jobs_cost_little(place: Place) -> None:
    old = time.time() - DAY
    for number in range(1000):
        place.end(place.submit(number, at=old), "a.ckpt", at=old)
    place.store.requests.clear()
    looking = Looking(place)
    assert looking.told() == []
    assert len(place.store.requests) < 10
    assert Looking(place).told() == []
    place.store.requests.clear()
    assert looking.told() == []
    assert len(place.store.requests) < 3


def test_a_look_lists_an_hour_not_the_history(place: Place) -> None:
    now = [time.time()]
    looking = Looking(place, clock=lambda: now[0])
    looking.told()
    late = place.submit(1, at=now[0] - 2 * HOUR)  # its submitter's clock is wrong
    place.end(late, "a.ckpt", at=now[0])
    assert looking.told() == []
    now[0] += HOUR
    assert looking.told() == [late.job_id], "everything is listed once an hour"


def test_old_marks_are_removed_and_tell_nothing_again(place: Place) -> None:
    Looking(place).told()
    job = place.submit(1)
    place.end(job, "a.ckpt")
    assert Looking(place).told() == [job.job_id]
    later = time.time() + 32 * DAY
    assert Looking(place, clock=lambda: later).told() == []
    assert not list(place.store.list("watchers/w/told/"))
    place.list_as(job, created_at=f"{datetime.fromtimestamp(later, UTC).replace(tzinfo=None).isoformat()}Z")
    assert Looking(place, clock=lambda: later).told() == []


def test_a_job_that_is_submitted_again_is_told_again(place: Place) -> None:
    looking = Looking(place)
    looking.told()
    job = place.submit(1, at=time.time() - 60)
    place.end(job, "a.ckpt", state="failed")
    assert looking.told() == []
    cleanup(place, job)  # type: ignore[arg-type]
    assert looking.told() == []
    place.end(place.submit(1), "a.ckpt")
    assert looking.told() == [job.job_id]
    assert Looking(place).told() == []


def test_an_outage_loses_nothing(place: Place) -> None:
    looking = Looking(place)
    looking.told()
    older, newer = place.submit(1, at=time.time() - 60), place.submit(2)
    for job in (older, newer):
        place.end(job, "a.ckpt")
    broken = object_names.handle(older.job_id)

    def away(_operation: str, name: str) -> None:
        if name == broken:
            raise StoreError("the store does not answer")

    place.store.fault = away
    assert looking.told() == [newer.job_id]
    with pytest.raises(StoreError):
        looking.told()
    place.store.fault = lambda _operation, _name: None
    assert looking.told() == [older.job_id]


@pytest.mark.attack
def test_a_planted_outcome_is_no_event(place: Place) -> None:
    looking = Looking(place)
    looking.told()
    planted = place.submit(1)
    place.end(planted, "a.ckpt", key=bytes(16))
    other = place.end(place.submit(2, "evaluate"), "a.ckpt")
    place.submit(3)
    place.put(object_names.result(f"job-{3:016x}"), other)
    place.submit(4)
    place.put(object_names.result(f"job-{4:016x}"), b"no frame")
    assert looking.told() == []
    assert Looking(place).told() == []


@pytest.mark.attack
def test_a_planted_outcome_delays_the_true_one(place: Place) -> None:
    now = [time.time()]
    looking = Looking(place, clock=lambda: now[0])
    looking.told()
    job = place.submit(1)
    place.end(job, "a.ckpt", key=bytes(16))
    assert looking.told() == []
    place.end(job, "a.ckpt")
    now[0] += 600
    assert looking.told() == [job.job_id]


@pytest.mark.attack
def test_a_success_of_another_function_is_no_event(place: Place) -> None:
    looking = Looking(place)
    looking.told()
    evil = place.submit(1, "evil")
    place.end(evil, "a.ckpt")
    place.list_as(evil, func_name="train")
    assert looking.told() == []
    assert Looking(place).told() == []


@pytest.mark.attack
def test_outputs_elsewhere_are_no_event(place: Place, tmp_path: Path) -> None:
    looking = Looking(place)
    looking.told()
    job = place.submit(1)
    place.end(job, "a.ckpt")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.ckpt").touch()
    place.list_as(job, output_dir=str(tmp_path / "elsewhere"))
    assert looking.told() == []


@pytest.mark.attack
def test_what_was_told_is_told_no_second_time(place: Place) -> None:
    looking = Looking(place)
    looking.told()
    job = place.submit(1, at=time.time() - 60)
    frame = place.end(job, "a.ckpt")
    assert looking.told() == [job.job_id]
    later = datetime.now(UTC).replace(tzinfo=None).isoformat()
    place.list_as(job, created_at=f"{later}Z")
    place.put(object_names.result(job.job_id), frame)
    assert looking.told() == []
    assert Looking(place).told() == []


@pytest.mark.attack
def test_an_old_success_is_no_event(place: Place) -> None:
    old = time.time() - DAY
    job = place.submit(1, at=old)
    place.end(job, "a.ckpt", at=old)
    looking = Looking(place)
    assert looking.told() == []
    later = datetime.now(UTC).replace(tzinfo=None).isoformat()
    place.list_as(job, created_at=f"{later}Z")
    assert looking.told() == []
    begun = json.dumps({"listed_until": 0.0, "unfinished": [job.job_id]})
    place.put("watchers/w/since.json", begun.encode())
    assert Looking(place).told() == []


@pytest.mark.attack
def test_a_planted_mark_hides_and_a_lost_one_repeats(place: Place) -> None:
    Looking(place).told()
    job = place.submit(1)
    place.end(job, "a.ckpt")
    (found,) = Looking(place).look()
    place.put(found.mark, b"")
    assert Looking(place).told() == []
    place.store.delete(found.mark)
    assert Looking(place).told() == [job.job_id]


@pytest.mark.attack
def test_a_planted_output_is_an_output(place: Place) -> None:
    Looking(place).told()
    job = place.submit(1)
    place.end(job, "a.txt")
    (place.folder / job.job_id / "planted.ckpt").touch()
    (found,) = Looking(place).look()
    assert found.names == ("planted.ckpt",)


@pytest.mark.attack
def test_planted_entries_and_names_break_nothing(place: Place) -> None:
    looking = Looking(place)
    looking.told()
    for name in ("index/x", "index/-", f"index/{0:012d}-a", f"index/{0:012d}-a\nb", "index/1-a"):
        place.store.create_if_absent(name, b"", {"func_name": "train"})
    place.store.create_if_absent(f"index/{0:012d}-..", b"", {"func_name": "train"})
    job = place.submit(1)
    place.end(job, *(f"{number:03d}{'x' * 200}.ckpt" for number in range(150)))
    (found,) = looking.look()
    assert found.more
    assert len(json.dumps(found.to_dict())) < 10_000


@kinetic_core.run(accelerator="cpu", backend="local")
def train(name: str) -> None:
    import os
    from pathlib import Path

    Path(os.environ["KINETIC_OUTPUT_DIR"], name).touch()


@pytest.mark.usefixtures("local_jobs")
def test_jobs_of_a_script_are_told() -> None:
    from kinetic_core.backends.base import open_backend

    backend = open_backend("local", default_connections())
    watcher, entries = OutputsWatcher("train", "*.ckpt", "real"), RecentEntries()
    assert watcher.look(backend, entries) == []
    on_worker = kinetic_core.run(accelerator="cpu", backend="local", warm="1s")(train.__wrapped__)
    calls = [train.run_async("a.ckpt"), on_worker.run_async("b.ckpt"), train.run_async("a.txt")]
    for call in calls:
        call.result(cleanup=False)
    found = {each.job_id: each.names for each in watcher.look(backend, entries)}
    assert found == {calls[0].job_id: ("a.ckpt",), calls[1].job_id: ("b.ckpt",)}

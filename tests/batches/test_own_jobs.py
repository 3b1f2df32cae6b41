"""Batches whose inputs wait for a client, with real jobs of this machine in the place of a cluster's."""

from __future__ import annotations

import json
import os
import re
import threading
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import object_names
from kinetic_core.backends.base import open_backend
from kinetic_core.batches.client_driven import attach_client_driven, start_client_driven
from kinetic_core.batches.definition import (
    Plan,
    line_object,
    manifest_object,
    resumption_object,
    resumptions,
)
from kinetic_core.batches.handle import BatchError, BatchHandle
from kinetic_core.batches.queue import read_line
from kinetic_core.batches.rerun import run_again
from kinetic_core.connections import Connections, default_connections
from kinetic_core.errors import (
    InvalidRequest,
    JobCancelled,
    JobConflict,
    JobNotFound,
    StoreError,
    StoreRefused,
)
from kinetic_core.jobs.bundle import pack
from kinetic_core.jobs.prepare import timestamp
from kinetic_core.options import RunOptions
from kinetic_core.settings import read_settings
from kinetic_core.store.directory import DirectoryObjectStore
from tests.batches.places import watch_that_is_refused
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("local_jobs")

NEW = Plan("grp-a", False, "args", 2, False, False, "a", {})


def work(number: int, folder: str) -> int:
    import time

    here = Path(folder)
    (here / f"began-{number}-{time.time_ns()}").touch()
    while not (here / f"go-{number}").exists() and not (here / "go").exists():
        time.sleep(0.01)
    if (here / f"fail-{number}").exists():
        raise ValueError(number)
    return number


@dataclass
class Kept:
    """The lines of a cluster that keeps them as it should."""

    digests: dict[str, tuple[str, str]] = field(default_factory=dict)

    def keep(self, namespace: str, group_id: str, line: str, spec_digest: str) -> str:
        kept = self.digests.setdefault(f"{namespace}/{group_id}", (line, spec_digest))
        if kept[1] != spec_digest:
            raise JobConflict(group_id)
        return kept[0]

    def find(self, namespace: str, group_id: str) -> str | None:
        return self.digests.get(f"{namespace}/{group_id}", (None, ""))[0]

    def remove(self, namespace: str, group_id: str) -> None:
        self.digests.pop(f"{namespace}/{group_id}", None)


class Cluster:
    """This machine, where nothing but a client gives inputs their turns."""

    def __init__(self, connections: Connections | None = None) -> None:
        self._machine = open_backend("local", connections or default_connections())
        self.lines, self.supervised_queue = Kept(), None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)


@dataclass
class Place:
    """A cluster, and a folder in which jobs show that they have begun and wait to be let go."""

    folder: Path
    group_id: str
    cluster: Any = field(default_factory=Cluster)

    def start(self, numbers: list[Any], **plan: Any) -> BatchHandle:
        packed = pack(work, RunOptions.checked("cpu"), default_connections(), backend=self.cluster)
        asked = replace(NEW, group_id=self.group_id, **plan)
        return start_client_driven(packed, [(number, str(self.folder)) for number in numbers], asked)

    def attach(self, *, goes_on: bool = True, timeout: float | None = None) -> BatchHandle:
        manifest = json.loads(self.cluster.store.read(manifest_object(self.group_id)))
        return attach_client_driven(self.cluster, manifest, 0.02, timeout, goes_on=goes_on)

    def began(self) -> list[int]:
        """What has begun, once for each time, in order."""
        found = [re.fullmatch(r"began-(\d+)-(\d+)", each.name) for each in self.folder.iterdir()]
        return [int(each[1]) for each in sorted(filter(None, found), key=lambda each: int(each[2]))]

    def let_go(self, *names: str) -> None:
        for name in names or ("go",):
            (self.folder / name).touch()

    def one_that_died(self, numbers: list[Any], running: int = 2, **plan: Any) -> None:
        """A batch of which so many inputs run, and whose client starts no more."""
        batch = self.start(numbers, **plan)
        wait_for(lambda: len(self.began()) == running)
        batch._board.stop(cancel=False)
        wait_for(lambda: batch._board.complete)


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    folder = tmp_path / "jobs"
    folder.mkdir()
    name = re.sub(r"\W|_", "-", request.node.name.removeprefix("test_"))
    return Place(folder, f"grp-{name[:30].strip('-')}")


@pytest.mark.promise("scale: `max_concurrent` means what it says")
def test_as_many_live_at_once_as_may(place: Place) -> None:
    batch = place.start([0, 1, 2, 3])
    wait_for(lambda: place.began() == [0, 1] or place.began() == [1, 0])
    place.let_go("go-1")
    wait_for(lambda: place.began()[2:] == [2])
    place.let_go()
    assert batch.results() == [0, 1, 2, 3]
    assert sorted(place.began()) == [0, 1, 2, 3]
    assert place.cluster.store.find(object_names.finished(place.group_id)) is not None


def test_the_thread_of_a_closed_client_ends(place: Place) -> None:
    """Else a script that has closed its client never ends: it waits for the thread."""
    client = Connections(read_settings())
    place.cluster = Cluster(client)
    place.start([0, 1, 2, 3])
    wait_for(lambda: len(place.began()) == 2)
    client.close()
    wait_for(lambda: f"kinetic-{place.group_id}" not in {each.name for each in threading.enumerate()})
    assert place.cluster.store.find(object_names.finished(place.group_id)) is None
    place.let_go()


def test_inputs_are_started_after_a_store_has_refused(place: Place) -> None:
    client = Connections(read_settings())
    place.cluster = Cluster(client)
    refusing = watch_that_is_refused(open_backend("local", client))
    batch = place.start([0, 1, 2, 3])
    with pytest.raises(StoreRefused, match="not permitted"):
        batch.wait(timeout=90)
    wait_for(lambda: len(place.began()) == 2)
    refused = refusing.refusals
    wait_for(lambda: refusing.refusals > refused + 4)  # the thread that starts inputs is told, too
    refusing.is_permitted = True
    place.let_go()
    wait_for(lambda: len(place.began()) == 4)  # the last refusal has been told: an end has been seen since
    assert batch.results(timeout=90) == [0, 1, 2, 3]


def test_whoever_attaches_goes_on(place: Place) -> None:
    place.one_that_died([0, 1, 2, 3, 4])
    assert place.cluster.store.find(object_names.finished(place.group_id)) is None
    looking = place.attach(goes_on=False)
    others = [place.attach() for _ in range(3)]
    place.let_go()
    assert [batch.results(cleanup=False) for batch in others] == [[0, 1, 2, 3, 4]] * 3
    assert looking.results(timeout=90) == [0, 1, 2, 3, 4]
    assert sorted(place.began()) == [0, 1, 2, 3, 4]


@pytest.mark.promise("batches: Batches of slices: queued by the client, resumed by `attach_batch`")
def test_several_who_go_on_keep_the_limit(place: Place) -> None:
    batches = [place.start([0, 1, 2, 3]), place.attach(), place.attach()]
    for last in (1, 2, 3):
        wait_for(lambda last=last: sorted(place.began()) == list(range(last + 1)))  # type: ignore[misc]
        place.let_go(f"go-{last - 1}")
    place.let_go()
    assert {tuple(batch.results(cleanup=False)) for batch in batches} == {(0, 1, 2, 3)}


def died_before_its_job(place: Place, index: int) -> None:
    """A client has stored the handle of an input, and has not created its Job."""
    found = read_line(
        place.cluster,
        "default",
        place.group_id,
        place.cluster.lines.find("default", place.group_id),
    )
    assert found is not None
    waiting = found[0][index]
    assert waiting is not None
    reference = replace(waiting.reference, created_at=timestamp())
    handle = json.dumps(reference.to_dict()).encode()
    place.cluster.store.create_if_absent(object_names.handle(reference.job_id), handle)


@pytest.mark.promise("batches: Batches of slices: queued by the client, resumed by `attach_batch`")
def test_an_input_with_a_handle_and_no_job_is_started(place: Place) -> None:
    place.one_that_died([0, 1, 2, 3])
    died_before_its_job(place, 2)
    looking = place.attach(goes_on=False)
    place.let_go()
    assert place.attach().results(cleanup=False) == [0, 1, 2, 3]
    assert looking.results(timeout=60) == [0, 1, 2, 3]
    assert sorted(place.began()) == [0, 1, 2, 3]


class Away:
    """A store that raises an error once, with the first request."""

    def __init__(self, whole: Any, *errors: Exception) -> None:
        self._whole = whole
        self.errors = list(errors)

    def __getattr__(self, name: str) -> Any:
        if self.errors:
            raise self.errors.pop()
        return getattr(self._whole, name)


def test_who_only_looks_survives_an_error_of_the_store(place: Place) -> None:
    place.one_that_died([0, 1, 2])
    other = replace(place, cluster=Cluster())
    other.cluster.lines = place.cluster.lines
    looking = other.attach(goes_on=False)
    away = other.cluster.store = Away(place.cluster.store, StoreError("away"))
    wait_for(lambda: not away.errors)
    place.let_go()
    assert place.attach().results(cleanup=False) == [0, 1, 2]
    assert looking.results(timeout=90) == [0, 1, 2]


def test_the_same_call_is_the_same_batch(place: Place) -> None:
    place.one_that_died([0, 1, 2])
    for numbers, plan in (([0, 1], {}), ([0, 1, 2], {"fail_fast": True})):
        with pytest.raises(JobConflict, match="another batch"):
            place.start(numbers, **plan)
    place.let_go()
    assert place.start([0, 1, 2]).results() == [0, 1, 2]
    assert place.start([0, 1, 2]).results() == [0, 1, 2]
    assert sorted(place.began()) == [0, 1, 2]


def test_what_was_stored_before_a_client_died_is_used(place: Place) -> None:
    place.one_that_died([0, 1])
    store = place.cluster.store
    store.delete(manifest_object(place.group_id))
    place.let_go()
    assert place.start([0, 1]).results() == [0, 1]
    assert len(place.began()) == 2


def test_a_line_that_somebody_has_written_is_not_used(place: Place) -> None:
    place.one_that_died([0, 1, 2])
    store, sha256 = place.cluster.store, place.cluster.lines.find("default", place.group_id)
    line = line_object(place.group_id, sha256)
    frame = store.read(line)
    store.delete(line)
    store.create_if_absent(line, frame.replace(b'"size":3', b'"size":2'))
    with pytest.raises(StoreError, match="written over"):
        place.attach()
    place.let_go()


@pytest.mark.attack
def test_of_an_endless_line_little_is_read(place: Place) -> None:
    place.one_that_died([0, 1, 2])
    line = line_object(place.group_id, place.cluster.lines.find("default", place.group_id))
    os.truncate(place.cluster.store.path(line), 1 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(StoreError, match="written over"):
            place.attach()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    place.let_go()
    assert peak < 64 << 20


def test_a_line_that_is_kept_without_its_size_is_read(place: Place) -> None:
    """Clients of an earlier version have kept its digest alone."""
    place.one_that_died([0, 1, 2])
    store, digests = place.cluster.store, place.cluster.lines.digests
    ((key, (line, spec_digest)),) = digests.items()
    sha256 = line.partition("-")[0]
    store.create_if_absent(line_object(place.group_id, sha256), store.read(line_object(place.group_id, line)))
    digests[key] = sha256, spec_digest
    place.let_go()
    assert place.attach().results() == [0, 1, 2]


def test_a_line_of_one_namespace_makes_nothing_in_another(place: Place) -> None:
    """Who may create Jobs there says which line counts there."""
    place.one_that_died([0, 1, 2])
    name = manifest_object(place.group_id)
    manifest = json.loads(place.cluster.store.read(name))
    place.cluster.lines.digests[f"theirs/{place.group_id}"] = next(iter(place.cluster.lines.digests.values()))
    place.cluster.store.delete(name)
    manifest["namespace"] = "theirs"
    place.cluster.store.create_if_absent(name, json.dumps(manifest).encode())
    with pytest.raises(StoreError, match="another namespace"):
        place.attach()
    place.let_go()


@pytest.mark.attack
def test_a_manifest_says_nothing_of_when_inputs_start(place: Place) -> None:
    """How many may live at once, and whether a failure stops the rest, is named by the cluster."""
    place.one_that_died([0, 1, 2, 3], max_concurrent=2)
    name = manifest_object(place.group_id)
    manifest = json.loads(place.cluster.store.read(name))
    manifest |= {"max_concurrent": 4, "fail_fast": True, "cancel_running": True}
    place.cluster.store.delete(name)
    place.cluster.store.create_if_absent(name, json.dumps(manifest).encode())
    (place.folder / "fail-0").touch()
    batch = place.attach()
    place.let_go("go-0")
    wait_for(lambda: sorted(place.began()) == [0, 1, 2])
    assert batch._board.active() == 2
    place.let_go()
    assert batch.results(return_exceptions=True)[1:] == [1, 2, 3]


def test_nothing_that_is_stored_has_a_key(place: Place) -> None:
    place.one_that_died([0, 1, 2])
    found = read_line(
        place.cluster, "default", place.group_id, place.cluster.lines.find("default", place.group_id)
    )
    assert found is not None
    for waiting in filter(None, found[0]):
        (manifest,) = waiting.manifests
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        assert {"name": "KINETIC_OUTCOME_KEY", "value": ""} in container["env"]
    job, _ = place.cluster.get("default", f"{place.group_id}-0")
    assert '{"name": "KINETIC_OUTCOME_KEY", "value": ""}' not in json.dumps(job)
    place.let_go()
    assert place.attach().results() == [0, 1, 2]


def test_one_too_old_to_be_gone_on_with_can_be_read(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.one_that_died([0, 1, 2])
    place.cluster.lines.digests.clear()
    place.let_go()
    batch = place.attach(timeout=0.1)
    with pytest.raises(BatchError) as caught:
        batch.results(timeout=90)
    assert caught.value.partial_results == [0, 1, None]
    assert [type(error) for error in caught.value.exceptions.values()] == [JobNotFound]
    assert batch.unavailable_children == {2: f"{place.group_id}-2"}
    assert "too old" in caplog.text
    assert sorted(place.began()) == [0, 1]


def test_inputs_that_cannot_be_submitted_are_told_to_all(place: Place) -> None:
    import threading

    place.one_that_died([0, threading.Lock(), 2, 3], is_new=True)
    place.let_go()
    with pytest.raises(BatchError) as caught:
        place.attach().results()
    assert caught.value.partial_results == [0, None, 2, 3]
    assert "UnpicklableArgument" in str(caught.value.submission_failures[1])


def test_cancelling_stops_what_any_client_has_started(place: Place) -> None:
    first = place.start([0, 1, 2, 3])
    wait_for(lambda: len(place.began()) == 2)
    place.attach(goes_on=False).cancel()
    values = first.results(return_exceptions=True, timeout=90)
    assert [type(value) for value in values] == [JobCancelled] * 4
    assert len(place.began()) == 2
    assert [type(each) for each in place.attach().results(return_exceptions=True)][:2] == [JobCancelled] * 2


def test_nothing_starts_after_a_failure_that_another_client_saw(place: Place) -> None:
    place.let_go("fail-0")
    place.one_that_died([0, 1, 2, 3], fail_fast=True)
    place.let_go("go-0")
    batch = place.attach()
    wait_for(lambda: batch._board.complete)
    place.let_go()
    values = batch.results(return_exceptions=True)
    assert [type(value) for value in values] == [ValueError, int, JobCancelled, JobCancelled]


@pytest.mark.promise("batches: … cancelled and resumed after the client's death")
def test_what_has_no_value_runs_again(place: Place) -> None:
    place.let_go("go", "fail-1")
    with pytest.raises(BatchError):
        place.start([0, 1, 2]).results(cleanup=False)
    wait_for(lambda: place.cluster.store.find(object_names.finished(place.group_id)) is not None)
    (place.folder / "fail-1").unlink()
    both = [place.start([0, 1, 2], skip_done=True) for _ in range(2)]
    assert [batch.results(cleanup=False) for batch in both] == [[0, 1, 2]] * 2
    assert sorted(place.began()) == [0, 1, 1, 2]


def test_nothing_runs_again_while_an_input_still_runs(place: Place) -> None:
    batch = place.start([0, 1])
    store = place.cluster.store
    wait_for(lambda: store.find(object_names.finished(place.group_id)) is not None)
    again = place.start([0, 1], skip_done=True)
    assert list(store.list(resumptions(place.group_id))) == []
    place.let_go()
    assert batch.results(cleanup=False) == again.results() == [0, 1]
    assert len(place.began()) == 2


class Thawing(DirectoryObjectStore):
    """The store of a client that is frozen once it has begun to run a batch again."""

    def __init__(self, root: Path, meanwhile: Callable[[], None]) -> None:
        super().__init__(root)
        self.meanwhile = meanwhile

    def create_if_absent(
        self, name: str, content: bytes | Path, metadata: Mapping[str, str] | None = None
    ) -> bool:
        is_first = super().create_if_absent(name, content, metadata)
        if name.endswith("/resumed-0"):
            self.meanwhile()
        return is_first


class Anew(Cluster):
    """A cluster on which another client then makes the Jobs anew. Counts what is removed."""

    def __init__(self, lines: Kept, others: Callable[[], None]) -> None:
        super().__init__()
        self.lines, self.removed, self.has_thawed = lines, list[str](), False
        self.store = Thawing(self._machine.store.root, lambda: self.thaw(others))  # type: ignore[attr-defined]

    def thaw(self, others: Callable[[], None]) -> None:
        others()
        self.has_thawed = True

    def get(self, namespace: str, job_id: str) -> Any:
        found = self._machine.get(namespace, job_id)
        if found is None or not self.has_thawed:
            return found
        return {**found[0], "metadata": {**found[0]["metadata"], "uid": "another"}}, found[1]

    def remove(self, _namespace: str, *job_ids: str) -> None:
        self.removed += job_ids


@pytest.mark.attack
def test_a_client_that_thaws_removes_nothing_new(place: Place) -> None:
    """It was taken to be dead; another has run again what has no value."""
    place.let_go("go", "fail-1")
    with pytest.raises(BatchError):
        place.start([0, 1]).results(cleanup=False)
    store, line_sha256 = place.cluster.store, place.cluster.lines.find("default", place.group_id)
    wait_for(lambda: store.find(object_names.finished(place.group_id)) is not None)
    new = [object_names.result(f"{place.group_id}-1"), object_names.finished(place.group_id)]

    def others() -> None:
        for name in new:
            store.delete(name)
            store.create_if_absent(name, b"the new Job's")

    thawed: Any = Anew(place.cluster.lines, others)
    found = read_line(thawed, "default", place.group_id, line_sha256)
    assert found is not None
    run_again(thawed, found[0], place.group_id)
    assert thawed.has_thawed
    assert thawed.removed == []
    assert [store.read(name) for name in new] == [b"the new Job's"] * 2


def test_what_was_removed_by_hand_does_not_run_again(place: Place) -> None:
    place.one_that_died([0, 1, 2])
    place.let_go("go-0")
    first = place.attach(goes_on=False).jobs[0]
    assert first is not None
    assert first.result(cleanup=False) == 0
    first.cleanup()
    place.let_go()
    batch = place.attach()
    gone, *others = batch.results(timeout=90, return_exceptions=True)
    assert isinstance(gone, JobNotFound)
    assert others == [1, 2]
    assert batch.unavailable_children == {0: f"{place.group_id}-0"}
    assert sorted(place.began()) == [0, 1, 2]


@pytest.mark.attack
def test_a_planted_resumption_runs_what_was_removed(place: Place) -> None:
    place.one_that_died([0, 1, 2])
    place.let_go("go-0")
    first = place.attach(goes_on=False).jobs[0]
    assert first is not None
    assert first.result(cleanup=False) == 0
    first.cleanup()
    place.cluster.store.create_if_absent(resumption_object(place.group_id, 0), b"anything")
    place.let_go()
    assert place.attach().results(timeout=90) == [0, 1, 2]
    assert sorted(place.began()) == [0, 0, 1, 2]


def test_cleaning_up_leaves_nothing(place: Place) -> None:
    batch = place.start([0, 1])
    wait_for(lambda: len(place.began()) == 2)
    with pytest.raises(InvalidRequest, match="cancel"):
        batch.cleanup()
    place.let_go()
    batch.wait()
    batch.cleanup()
    store = place.cluster.store
    assert [
        info.name for info in store.list("") if place.group_id in info.name and "outputs" not in info.name
    ] == []
    assert place.cluster.lines.digests == {}


def test_a_new_batch_that_cannot_be_made_leaves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> str:
        raise StoreError("no room")

    place.cluster.lines.keep = refuse
    with pytest.raises(StoreError, match="no room"):
        place.start([0, 1], is_new=True)
    assert not list(place.cluster.store.list(object_names.batch(place.group_id, "")))


@pytest.mark.attack
def test_a_planted_handle_keeps_no_other_input_from_starting(place: Place) -> None:
    """It seems to be that of the last input; its own input is a conflict."""
    place.one_that_died([0, 1, 2, 3, 4, 5], running=2, max_concurrent=2)
    genuine = place.cluster.store.read(object_names.handle(f"{place.group_id}-0")).decode()
    last = f"{place.group_id}-5"
    forged = json.loads(genuine.replace(f"{place.group_id}-0", last)) | {"group_index": 5}
    assert place.cluster.store.create_if_absent(object_names.handle(last), json.dumps(forged).encode())
    place.let_go()
    batch = place.attach()
    results = batch.results(timeout=60, return_exceptions=True)
    assert results[:5] == [0, 1, 2, 3, 4]
    assert isinstance(results[5], JobConflict)
    assert sorted(place.began()) == [0, 1, 2, 3, 4]

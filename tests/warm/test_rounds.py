"""Rounds of a map on warm workers: inputs without a value run again, and no input runs twice at a time."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kinetic_core import BatchError, JobStatus
from kinetic_core._runner import object_names, wire
from kinetic_core._runner.segments import sealed_states
from kinetic_core.batches.handle import BatchHandle
from kinetic_core.batches.outcomes import StoredBatch
from kinetic_core.batches.snapshot import snapshot
from kinetic_core.errors import ClusterUnreachable
from kinetic_core.jobs.inputs import read_manifest
from kinetic_core.jobs.lanes import ROUND, lane_id, lane_keys, lanes_of, last_round, read_segment
from kinetic_core.jobs.observe import find, observe
from kinetic_core.jobs.references import checked_reference
from tests.conftest import wait_for
from tests.warm.places import Call, Cluster, Here
from tests.warm.test_maps import begun, held

GROUP = "grp-round"


@pytest.fixture(params=["local", "gke"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Here]:
    here = Here(tmp_path) if request.param == "local" else Cluster(tmp_path)
    yield here
    here.close()


def odd_fails(told: tuple[int, str]) -> int:
    """Note the call; fail for an odd number, with much to say, unless the folder lets it succeed."""
    number, folder = told
    with Path(folder, f"calls-{number}").open("a") as calls:
        calls.write("x")
    if number % 2 and not Path(folder, "go").exists():
        raise ValueError("odd" * (50_000 if number == 3 else 1))
    return number * number


def start(place: Here, folder: Path, count: int = 5, **options: Any) -> BatchHandle:
    inputs = [(number, str(folder)) for number in range(count)]
    return place.map(odd_fails, inputs, group_id=GROUP, skip_done=True, **options)


def calls(folder: Path, count: int = 5) -> list[int]:
    files = (folder / f"calls-{number}" for number in range(count))
    return [len(file.read_text()) if file.exists() else 0 for file in files]


def stored(place: Here) -> StoredBatch:
    told = read_manifest(place.backend.store, GROUP)["reference"]
    return StoredBatch(place.backend, checked_reference(told, GROUP, place.backend))


def test_another_round_runs_inputs_without_a_value(place: Here, tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="2 of 5 inputs"):
        start(place, tmp_path).results(timeout=60, cleanup=False)
    assert calls(tmp_path) == [1] * 5
    (tmp_path / "go").touch()
    second = start(place, tmp_path)
    assert second.results(timeout=60, cleanup=False) == [0, 1, 4, 9, 16]
    assert calls(tmp_path) == [1, 2, 1, 2, 1]
    assert place.attach(GROUP).results(timeout=60, cleanup=False) == [0, 1, 4, 9, 16]
    assert [Call.at(place.backend, job).value() for job in second.jobs if job] == [0, 1, 4, 9, 16]
    assert start(place, tmp_path).results(timeout=60, cleanup=False) == [0, 1, 4, 9, 16]
    assert calls(tmp_path) == [1, 2, 1, 2, 1], "a map with all values runs nothing"
    assert len(place.workers()) <= 2


def test_readers_that_observe_nothing_know_rounds(place: Here, tmp_path: Path) -> None:
    start(place, tmp_path).wait(timeout=60)
    batch = stored(place)
    assert [batch.states()[index] for index in range(5)] == ["succeeded", "failed"] * 2 + ["succeeded"]
    assert batch.observe(1).status is JobStatus.FAILED
    found = snapshot(place.backend, batch.whole, 5)
    assert {index for index, status in found.items() if status is JobStatus.FAILED} == {1, 3}
    assert {str(error)[:3] for error in stored(place).failures([1, 3]).values()} == {"odd"}
    (tmp_path / "go").touch()
    start(place, tmp_path).wait(timeout=60)
    assert set(stored(place).states().values()) == {"succeeded"}
    assert [stored(place).outcome(index).value_or_raise() for index in range(5)] == [0, 1, 4, 9, 16]
    assert set(snapshot(place.backend, stored(place).whole, 5).values()) == {JobStatus.SUCCEEDED}
    child = find(place.backend, f"{GROUP}-3")
    assert child is not None
    assert observe(place.backend, child).status is JobStatus.SUCCEEDED


def test_a_map_that_lives_begins_no_other_round(place: Here, tmp_path: Path) -> None:
    options: dict[str, Any] = {"group_id": GROUP, "skip_done": True, "lanes": 1}
    place.map(held, [str(tmp_path)], **options)
    wait_for(lambda: begun(tmp_path))
    other = place.map(held, [str(tmp_path)], **options)
    assert dict(other.statuses()) == {0: JobStatus.RUNNING}
    (tmp_path / "go").touch()
    assert other.results(timeout=60, cleanup=False) == ["value"]
    assert (tmp_path / "executions").read_text() == "once\n"


def test_of_two_at_once_one_round_comes(place: Here, tmp_path: Path) -> None:
    start(place, tmp_path).wait(timeout=60)
    (tmp_path / "go").touch()
    with ThreadPoolExecutor(3) as pool:
        batches = list(pool.map(lambda _: start(place, tmp_path), range(3)))
    for batch in batches:
        assert batch.results(timeout=60, cleanup=False) == [0, 1, 4, 9, 16]
    assert calls(tmp_path) == [1, 2, 1, 2, 1]
    assert last_round(place.backend, stored(place).whole) == 1


def test_a_cancelled_map_goes_on_in_another_round(place: Here, tmp_path: Path) -> None:
    options: dict[str, Any] = {"group_id": GROUP, "skip_done": True, "lanes": 1}
    first = place.map(held, [str(tmp_path)] * 2, **options)
    wait_for(lambda: begun(tmp_path))
    first.cancel()
    (tmp_path / "alive").unlink()
    (tmp_path / "go").touch()
    assert place.map(held, [str(tmp_path)] * 2, **options).results(timeout=60, cleanup=False) == ["value"] * 2
    assert (tmp_path / "executions").read_text() == "once\n" * 3


def test_a_lane_that_comes_too_late_runs_nothing(place: Here, tmp_path: Path) -> None:
    """A submitter of the first round was held up before it made its lane, and another has gone on."""
    start(place, tmp_path, lanes=1).wait(timeout=60)
    (tmp_path / "go").touch()
    start(place, tmp_path, lanes=1).wait(timeout=60)
    late = lane_id(GROUP, 0)
    place.backend.remove("default", late)
    place.backend.store.delete_all(f"jobs/{late}/")
    inputs = [(number, str(tmp_path)) for number in range(5)]
    place.map(odd_fails, inputs, group_id=GROUP, lanes=1)
    lane = find(place.backend, late)
    assert lane is not None
    wait_for(lambda: observe(place.backend, lane).is_terminal)
    assert calls(tmp_path) == [1, 2, 1, 2, 1]


@pytest.mark.attack
def test_a_planted_round_is_no_state(place: Here, tmp_path: Path) -> None:
    """And what plants it before a submission only gets passed over."""
    start(place, tmp_path).wait(timeout=60)
    store, told = place.backend.store, {"lanes": 1, "blocks": "x", "inputs": "0-4"}
    for number, content in ((1, json.dumps(told).encode()), (2, b"nonsense"), (9, b"{}")):
        store.create_if_absent(object_names.of_round(GROUP, number, ROUND), content)
    whole = stored(place).whole
    assert last_round(place.backend, whole) == 0
    assert stored(place).states()[1] == "failed"
    (tmp_path / "go").touch()
    assert start(place, tmp_path).results(timeout=60, cleanup=False) == [0, 1, 4, 9, 16]
    assert last_round(place.backend, whole) == 3
    assert calls(tmp_path) == [1, 2, 1, 2, 1]


def test_a_submission_that_died_is_completed(place: Here, tmp_path: Path) -> None:
    """Its round was defined, and no lane of it made; or one of the first round was not."""
    start(place, tmp_path).wait(timeout=60)
    (tmp_path / "go").touch()
    start(place, tmp_path).wait(timeout=60)
    store = place.backend.store
    for lane in lanes_of(place.backend, GROUP):
        place.backend.remove("default", lane.job_id)
        store.delete_all(f"jobs/{lane.job_id}/")
    defined = object_names.of_round(GROUP, 1, ROUND)
    content = store.read(defined)
    store.delete_all(f"{object_names.rounds(GROUP)}1/")
    store.create_if_absent(defined, content)
    assert start(place, tmp_path).results(timeout=60, cleanup=False) == [0, 1, 4, 9, 16]
    assert calls(tmp_path) == [1, 3, 1, 3, 1]
    assert last_round(place.backend, stored(place).whole) == 1


def test_a_lane_that_a_submission_left_out_is_made(place: Here, tmp_path: Path) -> None:
    start(place, tmp_path).wait(timeout=60)
    (tmp_path / "go").touch()
    start(place, tmp_path).wait(timeout=60)
    missing = lane_id(GROUP, 1, 1)
    place.backend.remove("default", missing)
    place.backend.store.delete_all(f"jobs/{missing}/")
    place.backend.store.delete(object_names.finished(GROUP, 1))
    assert start(place, tmp_path).results(timeout=60, cleanup=False) == [0, 1, 4, 9, 16]
    assert find(place.backend, missing) is not None
    assert calls(tmp_path) == [1, 2, 1, 2, 1]
    assert last_round(place.backend, stored(place).whole) == 1


def test_without_its_job_a_lane_may_still_run(place: Here, tmp_path: Path) -> None:
    """Nothing runs beside it: another round begins once its worker has ended."""
    options: dict[str, Any] = {"group_id": GROUP, "skip_done": True, "lanes": 1}
    place.map(held, [str(tmp_path)], **options)
    wait_for(lambda: begun(tmp_path))
    lane = find(place.backend, lane_id(GROUP, 0))
    assert lane is not None
    if place.name == "local":
        (tmp_path / "local" / "cluster" / "default" / f"{lane.job_id}.json").unlink()
    else:
        place.backend.remove("default", lane.job_id)
    with pytest.raises(ClusterUnreachable, match="kinetic jobs cancel job-"):
        place.map(held, [str(tmp_path)], **options)
    assert (tmp_path / "executions").read_text() == "once\n"
    (tmp_path / "go").touch()
    wait_for(lambda: not (tmp_path / "alive").exists())
    wait_for(lambda: stored(place).states() == {0: "succeeded"})
    assert place.map(held, [str(tmp_path)], **options).results(timeout=60, cleanup=False) == ["value"]
    assert (tmp_path / "executions").read_text() == "once\n"


def test_what_cannot_be_submitted_begins_no_round(place: Here) -> None:
    options: dict[str, Any] = {"group_id": GROUP, "skip_done": True}
    inputs = [-1, threading.Lock(), -3]
    for _ in range(2):
        batch = place.map(abs, inputs, **options)
        found = batch.results(timeout=60, cleanup=False, return_exceptions=True)
        assert (found[0], found[2]) == (1, 3)
        assert "cannot pickle" in str(found[1])
    assert last_round(place.backend, stored(place).whole) == 0
    assert "cannot pickle" in str(stored(place).failure(1))


def test_another_number_of_workers_goes_on_as_well(place: Here, tmp_path: Path) -> None:
    start(place, tmp_path, lanes=1).wait(timeout=60)
    (tmp_path / "go").touch()
    assert start(place, tmp_path, lanes=2).results(timeout=60, cleanup=False) == [0, 1, 4, 9, 16]
    assert len(lanes_of(place.backend, GROUP)) == 2
    assert len(lanes_of(place.backend, GROUP, every=True)) == 3


def test_cleanup_removes_every_round(place: Here, tmp_path: Path) -> None:
    start(place, tmp_path).wait(timeout=60)
    (tmp_path / "go").touch()
    second = start(place, tmp_path)
    second.wait(timeout=60)
    lanes = lanes_of(place.backend, GROUP, every=True)  # which end a moment after their last input
    wait_for(lambda: all(observe(place.backend, lane).is_terminal for lane in lanes))
    second.cleanup()
    assert not [info.name for info in place.backend.store.list("") if GROUP in info.name]


def test_listings_tell_states_without_a_read(place: Here, tmp_path: Path) -> None:
    """Where a listing has metadata, as that of Cloud Storage has; the runner's directory keeps none."""
    start(place, tmp_path).wait(timeout=60)
    store, whole = place.backend.store, stored(place).whole
    keys, expected = lane_keys(place.backend, whole), stored(place).states()
    for info in list(store.list(object_names.segments(GROUP))):
        segment = read_segment(store, info.name, keys, whole)
        assert segment is not None
        told = {str(index): state for index, state in segment.states.items()}
        key_id = str(wire.decode_head(segment.content)["key_id"])
        sealed = sealed_states(info.name, told, key_id, segment.key)
        store.delete(info.name)
        store.create_if_absent(info.name, b"is not read", {wire.STATES: sealed})
    assert stored(place).states() == expected


@pytest.mark.attack
def test_states_that_no_lane_sealed_are_no_states(place: Here, tmp_path: Path) -> None:
    start(place, tmp_path, lanes=1).wait(timeout=60)
    store, whole = place.backend.store, stored(place).whole
    keys = lane_keys(place.backend, whole)
    name, *_ = (info.name for info in store.list(object_names.segments(GROUP)))
    segment = read_segment(store, name, keys, whole)
    assert segment is not None
    key_id = str(wire.decode_head(segment.content)["key_id"])
    sealed = sealed_states(name, {"0": "failed"}, key_id, segment.key)
    store.delete_all(object_names.segments(GROUP))
    others = object_names.outcome_segment(GROUP, 1, 0), object_names.outcome_segment(GROUP, 0, 0, 1)
    for place_of_it, told in (
        (name, sealed.replace("failed", "succeeded")),
        (name, sealed_states(name, {"0": "succeeded"}, key_id, b"a key of somebody's")),
        (name, "nonsense"),
        *((other, sealed) for other in others),
    ):
        store.create_if_absent(place_of_it, b"", {wire.STATES: told})
        assert stored(place).states() == {}
        store.delete(place_of_it)
    store.create_if_absent(name, b"", {wire.STATES: sealed})
    assert stored(place).states() == {0: "failed"}

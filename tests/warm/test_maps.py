"""Maps on warm workers, on this machine and on a cluster: what holds for the inputs of any batch holds."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import mmap
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from numpy import random as numpy_random

import kinetic_core
from kinetic_core import BatchError, JobStatus
from kinetic_core._runner import object_names, wire
from kinetic_core._runner.child import OUTCOME_FILE
from kinetic_core._runner.notes import encode_note
from kinetic_core.batches.lanes import LaneWatch
from kinetic_core.batches.progress import Board
from kinetic_core.errors import (
    InvalidRequest,
    JobCancelled,
    JobConflict,
    JobDeadlineExceeded,
    JobFailed,
    JobLost,
    JobMisconfigured,
    MalformedObject,
)
from kinetic_core.jobs.inputs import read_manifest
from kinetic_core.jobs.lanes import lane_id
from kinetic_core.jobs.observe import find, observe
from kinetic_core.jobs.references import checked_reference
from kinetic_core.jobs.signing import outcome_key
from kinetic_core.jobs.timeline import Explanation, explain
from kinetic_core.settings import read_settings
from tests.conftest import end_local_jobs, wait_for
from tests.runner.test_signing_key import memory
from tests.warm.places import Call, Cluster, Here, kill_worker
from tests.warm.unprivileged import reads_processes


@pytest.fixture(params=["local", "gke"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Here]:
    here = Here(tmp_path) if request.param == "local" else Cluster(tmp_path)
    yield here
    here.close()


def whoami(number: int) -> tuple[int, int, str]:
    return number, os.getpid(), os.environ["KINETIC_JOB_ID"]


def test_inputs_run_in_processes_of_their_own(place: Here) -> None:
    batch = place.map(whoami, range(50))
    values = batch.results(timeout=60, cleanup=False)
    assert [value[0] for value in values] == list(range(50))
    assert len({value[1] for value in values}) == 50
    assert [value[2] for value in values] == [f"{batch.group_id}-{number}" for number in range(50)]
    assert batch.statuses() == [(number, JobStatus.SUCCEEDED) for number in range(50)]
    workers = {worker.job_id for worker in place.workers()}
    assert len(workers) == 2
    assert place.map(whoami, range(3)).results(timeout=60, cleanup=False) != []
    assert {worker.job_id for worker in place.workers()} == workers


def test_a_map_takes_few_objects_of_the_store(place: Here) -> None:
    batch = place.map(abs, range(640), lanes=1)
    assert batch.results(timeout=100, cleanup=False) == list(range(640))
    names = [info.name for info in place.backend.store.list("")]
    own = [name for name in names if batch.group_id in name]
    assert len(own) < 0.1 * 640


def fails_twice(folder: str) -> str:
    with Path(folder, "runs").open("a") as stream:
        stream.write("x")
    if len(Path(folder, "runs").read_text()) <= 2:
        raise ValueError("not yet")
    return "third"


def drawn(_number: int) -> float:
    return float(numpy_random.random())


def test_inputs_draw_numbers_of_their_own(place: Here) -> None:
    """NumPy is imported before the first input, and its generator is that of all forks."""
    assert len(set(place.map(drawn, range(8), lanes=1).results(cleanup=False))) == 8


def test_each_input_has_retries_of_its_own(place: Here, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    batch = place.map(fails_twice, map(str, folders), retries=2)
    assert batch.results(timeout=60, cleanup=False) == ["third"] * 3
    assert [len((folder / "runs").read_text()) for folder in folders] == [3] * 3
    for folder in folders:
        (folder / "runs").unlink()
    with pytest.raises(BatchError, match="3 of 3 inputs"):
        place.map(fails_twice, map(str, folders), retries=1).results(timeout=60, cleanup=False)
    assert [len((folder / "runs").read_text()) for folder in folders] == [2] * 3


def odd(number: int) -> int:
    if number % 2:
        print("no", number)
        raise KeyError(number)
    if number == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 6:
        os._exit(3)
    return number


def test_failures_name_their_input(place: Here) -> None:
    batch = place.map(odd, range(8))
    with pytest.raises(BatchError) as told:
        batch.results(timeout=60, cleanup=False)
    found = told.value
    assert sorted(found.exceptions) == [1, 3, 4, 5, 6, 7]
    assert [type(found.exceptions[index]) for index in (1, 4, 6)] == [KeyError, JobFailed, JobFailed]
    assert "SIGKILL" in str(found.exceptions[4])
    assert "exited with code 3" in str(found.exceptions[6])
    assert found.partial_results == [0, None, 2, None, None, None, None, None]
    assert [job.group_index for job in found.failures] == [1, 3, 4, 5, 6, 7]


def test_an_input_is_a_job_by_its_reference(place: Here) -> None:
    batch = place.map(odd, range(4))
    batch.wait(timeout=60)
    reference = find(place.backend, f"{batch.group_id}-3")
    assert reference is not None
    assert observe(place.backend, reference).status is JobStatus.FAILED
    failed = Call.at(place.backend, batch.jobs[3])
    with pytest.raises(KeyError):
        failed.result(timeout=60, cleanup=False)
    assert failed.logs() == "no 3\n"
    assert "function" in str(failed.explain())
    assert Call.at(place.backend, batch.jobs[2]).result(timeout=60, cleanup=False) == 2


def test_another_client_attaches_to_it(place: Here) -> None:
    batch = place.map(odd, [0, 2, 8])
    other = place.attach(batch.group_id)
    assert other.results(timeout=60, cleanup=False) == [0, 2, 8]
    batch.wait(timeout=60)
    assert batch.results(timeout=60, cleanup=False) == [0, 2, 8]
    assert place.attach(batch.group_id).results(timeout=60, cleanup=False) == [0, 2, 8], (
        "its lanes are removed"
    )


def test_the_same_map_under_the_same_id_is_one(place: Here) -> None:
    first = place.map(whoami, range(4), group_id="grp-same").results(timeout=60, cleanup=False)
    assert place.map(whoami, range(4), group_id="grp-same").results(timeout=60, cleanup=False) == first
    with pytest.raises(JobConflict, match="another batch"):
        place.map(whoami, range(5), group_id="grp-same")
    with pytest.raises(InvalidRequest, match="begun with another max_concurrent"):
        place.map(whoami, range(4), lanes=1, group_id="grp-same")


def leaves_much(number: int) -> list[object]:
    found = [os.environ.get("LEFT"), Path("left").exists(), hasattr(sys, "left"), "json.tool" in sys.modules]
    os.environ["LEFT"] = "left"
    Path("left").touch()
    sys.left = number  # type: ignore[attr-defined]
    sys.modules["json.tool"] = sys
    if os.fork() == 0:
        time.sleep(1000)
        os._exit(0)
    os.chdir("/")
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    return found


@pytest.mark.attack
def test_nothing_of_an_input_reaches_the_next(place: Here) -> None:
    found = place.map(leaves_much, range(4), lanes=1).results(timeout=60, cleanup=False)
    assert found == [[None, False, False, False]] * 4


class Custom:
    def __init__(self, number: int) -> None:
        self.number = number


def large(number: int) -> object:
    return Custom(number) if number == 0 else bytes([number]) * (number << 20)


def test_large_values_and_objects_come_back(place: Here) -> None:
    first, second, third = place.map(large, [0, 1, 3], lanes=1).results(timeout=60, cleanup=False)
    assert first.number == 0
    assert (second, third) == (b"\1" * (1 << 20), b"\3" * (3 << 20))


def returns_more_than_its_pipes_hold(size: int) -> bytes:
    """Pipes have a page or two where a user of the node has many."""
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the directory's own descriptor, and what is no pipe
            fcntl.fcntl(int(each.name), fcntl.F_SETPIPE_SZ, mmap.PAGESIZE)
    return bytes(size)


@pytest.mark.skipif(sys.platform != "linux", reason="sets the size of pipes")
def test_a_value_larger_than_its_pipe_comes_back(place: Here) -> None:
    batch = place.map(returns_more_than_its_pipes_hold, [16 << 10], timeout=10)
    assert batch.results(timeout=60, cleanup=False) == [bytes(16 << 10)]


def fails_at_length(length: int) -> None:
    """Fail where the failure cannot be written to a file, as on a full disk."""
    Path(os.environ["KINETIC_WORK_DIR"], OUTCOME_FILE).mkdir(parents=True)
    raise ValueError("\N{COLLISION SYMBOL}" * length)


def test_a_long_failure_that_has_no_file_is_told(place: Here) -> None:
    batch = place.map(fails_at_length, [10_000], timeout=10)
    with pytest.raises(BatchError) as told:
        batch.results(timeout=60, cleanup=False)
    text = str(told.value.exceptions[0])
    assert "how the function failed cannot be written" in text
    assert "It was: ValueError: \N{COLLISION SYMBOL}" in text


def held(folder: str) -> str:
    """Note each execution and whether another was alive; wait until told to go on."""
    alive = Path(folder, "alive")
    mark = "twice" if alive.exists() else "once"
    alive.write_text(str(os.getpid()))  # before the note, after which a test may kill this
    with Path(folder, "executions").open("a") as stream:
        stream.write(f"{mark}\n")
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    alive.unlink()
    return "value"


def begun(folder: Path, times: int = 1) -> bool:
    file = folder / "executions"
    return file.exists() and len(file.read_text().splitlines()) >= times


def test_cancelling_it_ends_all_and_keeps_workers(place: Here, tmp_path: Path) -> None:
    batch = place.map(held, [str(tmp_path)] * 3, lanes=1)
    wait_for(lambda: begun(tmp_path))
    assert dict(batch.statuses()) == {0: JobStatus.RUNNING, 1: JobStatus.PENDING, 2: JobStatus.PENDING}
    with pytest.raises(InvalidRequest, match="cancelled as a whole"):
        Call.at(place.backend, batch.jobs[1]).cancel()
    batch.cancel()
    with pytest.raises(BatchError) as told:
        batch.results(timeout=60, cleanup=False)
    assert {type(each) for each in told.value.exceptions.values()} == {JobCancelled}
    assert (tmp_path / "executions").read_text() == "once\n"
    (tmp_path / "alive").unlink()
    assert place.map(abs, [-1], lanes=1).results(timeout=60, cleanup=False) == [1]
    assert len(place.workers()) == 1


def test_after_a_failure_nothing_starts(place: Here) -> None:
    batch = place.map(odd, [0, 1, *range(2, 40)], lanes=1, fail_fast=True)
    with pytest.raises(BatchError) as told:
        batch.results(timeout=60, cleanup=False)
    assert type(told.value.exceptions[1]) is KeyError
    assert {type(told.value.exceptions[index]) for index in range(2, 40)} == {JobCancelled}


def test_the_timeout_of_an_input_ends_it_alone(place: Here, tmp_path: Path) -> None:
    batch = place.map(sleeps, [0, 100, 0], lanes=1, timeout=2)
    found = batch.results(timeout=60, cleanup=False, return_exceptions=True)
    assert [found[0], found[2]] == [0, 0]
    assert type(found[1]) is JobDeadlineExceeded


def sleeps(seconds: int) -> int:
    time.sleep(seconds)
    return seconds


def test_a_function_that_cannot_be_loaded_fails_all(place: Here) -> None:
    batch = place.map(Unloadable(), range(3))
    found = batch.results(timeout=60, cleanup=False, return_exceptions=True)
    assert {type(each) for each in found} == {JobMisconfigured}
    assert "not here" in str(found[0])


class Unloadable:
    __name__ = "unloadable"

    def __init__(self) -> None:
        self.state = "some"

    def __call__(self, number: int) -> int:
        return number

    def __setstate__(self, state: object) -> None:
        if "KINETIC_JOB_ID" in os.environ:
            raise RuntimeError("not here")


@pytest.mark.parametrize("who", ["input", "template", "lane"])
def test_who_dies_and_the_input_runs_once(place: Here, tmp_path: Path, who: str) -> None:
    batch = place.map(held, [str(tmp_path), str(tmp_path)], lanes=1, retries=2)
    wait_for(lambda: begun(tmp_path))
    pid = int(wait_for_text(tmp_path / "alive"))
    parents = [pid]
    while len(parents) < 3:  # the template is its parent, and the lane's runner the template's
        parents.append(parent(parents[-1]))
    (tmp_path / "alive").unlink()
    os.kill(parents[["input", "template", "lane"].index(who)], signal.SIGKILL)
    wait_for(lambda: begun(tmp_path, 2))
    (tmp_path / "go").touch()
    assert batch.results(timeout=60, cleanup=False) == ["value", "value"]
    assert (tmp_path / "executions").read_text().splitlines() == ["once"] * 3


def wait_for_text(file: Path) -> str:
    wait_for(lambda: file.exists() and file.read_text())
    return file.read_text()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_lane_whose_worker_dies_goes_on_in_a_pod(place: Here, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    batch = place.map(held, map(str, folders), lanes=1)
    (folders[0] / "go").touch()
    wait_for(lambda: begun(folders[1]))
    worker = find(place.backend, lane_id(batch.group_id, 0))
    assert worker is not None
    kill_worker(place.runner_of(worker.worker), folders[1] / "alive")
    for folder in folders:
        (folder / "go").touch()
    assert batch.results(timeout=60, cleanup=False) == ["value"] * 3
    runs = [(folder / "executions").read_text().splitlines() for folder in folders]
    assert runs[1:] == [["once"] * 2, ["once"]]
    assert set(runs[0]) == {"once"}


def writes_and_waits(folder: str) -> str:
    Path("left").touch()
    return held(folder)


def changes_a_module(number: int) -> list[bool]:
    """Change a module of the project, with its time and its compiled file; return what was there before."""
    module, compiled = Path("canaries.py"), Path("__pycache__", "other.pyc")
    found = [module.read_text() == "value = 2", compiled.exists()]
    before = module.stat()
    module.write_text("value = 2")
    os.utime(module, ns=(before.st_atime_ns, before.st_mtime_ns))
    compiled.parent.mkdir(exist_ok=True)
    compiled.touch()
    return found


def changes_by_mapping(number: int) -> list[bool]:
    """Write to a module of the project through a mapping that lives as long as this process."""
    with Path("canaries.py").open("r+b") as stream:
        mapped = mmap.mmap(stream.fileno(), 0)
    found = [mapped[:1] == b"#"]
    mapped[:1] = b"#"
    kept.append(mapped)
    return found


def changes_by_another_name(number: int) -> list[bool]:
    module = Path("canaries.py")
    found = [module.read_text() == "value = 2"]
    other = Path(os.environ["KINETIC_WORK_DIR"]).parent / f"other-{number}.py"
    other.parent.mkdir(exist_ok=True)
    other.hardlink_to(module)
    other.write_text("value = 2")
    return found


class ChangesByInheritedMapping:
    """Function that has mapped a file of the project when it was loaded, before any input."""

    __name__ = "changes_by_inherited_mapping"

    def __init__(self) -> None:
        self.state = "some"

    def __call__(self, number: int) -> list[bool]:
        found = [self.mapped[:1] == b"#"]
        self.mapped[:1] = b"#"
        return found

    def __setstate__(self, state: object) -> None:
        if "KINETIC_JOB_ID" in os.environ:
            with Path("canaries.py").open("r+b") as stream:
                self.mapped = mmap.mmap(stream.fileno(), 0)


kept: list[object] = []
"""What must not be collected as garbage."""


@pytest.mark.attack
@pytest.mark.parametrize(
    "change",
    [changes_a_module, changes_by_mapping, changes_by_another_name, ChangesByInheritedMapping()],
    ids=["module", "mapping", "hard link", "inherited mapping"],
)
def test_what_an_input_hides_reaches_no_other(place: Here, change: Callable[[int], list[bool]]) -> None:
    found = place.map(change, range(3), lanes=1).results(timeout=60, cleanup=False)
    assert [any(each) for each in found] == [False] * 3


def reads_everything(number: int) -> int:
    """Read and import files of the project, and write some that do not stay; return who has forked this."""
    for path in Path().rglob("*.py"):
        path.read_bytes()
    importlib.import_module("canaries")
    Path("left").touch()
    Path("left").unlink()
    return os.getppid()


def test_the_function_is_loaded_once_if_nothing_changes(place: Here) -> None:
    found = place.map(reads_everything, range(10), lanes=1).results(timeout=60, cleanup=False)
    assert len(set(found)) == 1


@pytest.mark.attack
def test_with_a_removed_claim_an_input_runs_twice(place: Here, tmp_path: Path) -> None:
    """Whoever may remove objects can have that, and no other value of it."""
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    batch = place.map(held, map(str, folders), lanes=2)
    wait_for(lambda: begun(folders[0]) and begun(folders[1]))
    place.backend.store.delete(object_names.block_claim(batch.group_id, 0))
    (folders[1] / "go").touch()
    wait_for(lambda: begun(folders[0], 2))
    (folders[0] / "alive").touch()
    (folders[0] / "go").touch()
    found = batch.results(timeout=60, cleanup=False, return_exceptions=True)
    assert found[1] == "value"
    assert found[0] == "value" or type(found[0]) is FileNotFoundError


@pytest.mark.attack
def test_no_process_with_user_code_has_a_key(place: Here, tmp_path: Path) -> None:
    """Neither in the first process with the function, nor in one that was forked when there had been keys."""
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    batch = place.map(writes_and_waits, map(str, folders), lanes=1)
    lane = place.backend.get("default", lane_id(batch.group_id, 0))
    key = outcome_key(lane[0])
    assert key is not None
    keys = [key, *(wire.input_key(key, index) for index in range(2))]
    for folder in folders:
        wait_for(lambda own=folder: begun(own))
        child = int(wait_for_text(folder / "alive"))
        template = parent(child)
        assert not [one for one in keys for pid in (child, template) if one in memory(pid)]
        assert key in memory(parent(template)), "the test reads what it should"
        (folder / "go").touch()
    assert batch.results(timeout=60, cleanup=False) == ["value"] * 2


@pytest.mark.attack
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_input_cannot_read_what_it_is_forked_of(place: Here) -> None:
    """Nor write there, which takes the same permission: inputs to come are made of it."""
    found = place.map(reads_processes, range(2), lanes=1).results(timeout=60, cleanup=False)
    assert found == [(True, False)] * 2


def test_without_a_retry_a_lost_worker_fails_inputs(place: Here, tmp_path: Path) -> None:
    batch = place.map(held, [str(tmp_path)], lanes=1, infrastructure_retries=0)
    wait_for(lambda: begun(tmp_path))
    lane = find(place.backend, lane_id(batch.group_id, 0))
    assert lane is not None
    os.kill(place.runner_of(lane.worker), signal.SIGKILL)
    (found,) = batch.results(timeout=60, cleanup=False, return_exceptions=True)
    assert type(found) is JobLost
    assert batch.statuses() == [(0, JobStatus.FAILED)]


@pytest.mark.attack
def test_what_no_lane_has_signed_is_not_believed(place: Here, tmp_path: Path) -> None:
    store = place.backend.store
    forged = wire.encode_frame(
        {
            "protocol": 1,
            "job_id": "grp-f-l0",
            "object": "batches/grp-f/outcomes/00000000-000000.outcomes",
            "key_id": "grp-f-l0:x:y",
            "states": {"0": "succeeded"},
        },
        {"0": b""},
        b"a key of somebody's",
    )
    store.create_if_absent(object_names.outcome_segment("grp-f", 0, 0), forged)
    store.create_if_absent(object_names.outcome_segment("grp-f", 1, 0), b"nonsense")
    store.create_if_absent(object_names.result("grp-f-1"), forged)
    batch = place.map(whoami, range(4), group_id="grp-f")
    assert [value[0] for value in batch.results(timeout=60, cleanup=False)] == [0, 1, 2, 3]


@pytest.mark.attack
def test_a_planted_claim_of_a_block_is_no_state(place: Here, tmp_path: Path) -> None:
    """Neither for the batch nor for an input; and the input, which no lane can take, is told as lost."""
    first, second = (object_names.block_claim("grp-c", index) for index in (1, 2))
    told = {"lane": 0, "end": 3, "key_id": "grp-c-l0:x:y"}
    store = place.backend.store
    for name in (first, second):
        store.create_if_absent(name, encode_note(b"a key of somebody's", name, told))
    (tmp_path / "go").touch()
    batch = place.map(slowly, [str(tmp_path)] * 4, lanes=1, group_id="grp-c")
    wait_for(lambda: batch.statuses()[0] == (0, JobStatus.RUNNING))
    assert {status for _, status in batch.statuses()[1:]} == {JobStatus.PENDING}
    child = batch.jobs[1]
    assert child is not None
    assert observe(place.backend, child).status is JobStatus.PENDING
    (tmp_path / "end").touch()
    found = batch.results(timeout=60, cleanup=False, return_exceptions=True)
    assert [found[0], found[3]] == ["value", "value"]
    assert [type(found[1]), type(found[2])] == [JobLost, JobLost]
    assert "somebody else who can write" in str(found[1])
    assert dict(place.attach("grp-c").statuses())[1] is JobStatus.FAILED


def slowly(folder: str) -> str:
    while not Path(folder, "end").exists():
        time.sleep(0.01)
    return "value"


@pytest.mark.attack
def test_a_claim_copied_to_another_block_is_no_state(place: Here, tmp_path: Path) -> None:
    batch = place.map(slowly, [str(tmp_path)] * 3, lanes=1, group_id="grp-d")
    wait_for(lambda: batch.statuses()[0] == (0, JobStatus.RUNNING))
    store = place.backend.store
    (claim,) = store.list(object_names.block_claims("grp-d"))
    content = store.read(claim.name)
    store.create_if_absent(object_names.block_claim("grp-d", 2), content, {wire.CLAIM: content.decode()})
    assert dict(batch.statuses())[2] is JobStatus.PENDING
    batch.cancel()


@pytest.mark.attack
def test_of_a_planted_segment_little_is_read(place: Here) -> None:
    """What is larger than any segment is passed over: nobody's memory is as large as somebody's object."""
    name, size = object_names.outcome_segment("grp-g", 0, 0), wire.LARGEST_SEGMENT
    head = wire.encode_frame({"protocol": 1, "key_id": "grp-g-l0:x:y", "states": {}}, {"0": bytes(4 * size)})
    place.backend.store.create_if_absent(name, head)
    batch = place.map(whoami, range(2), group_id="grp-g")
    tracemalloc.start()
    try:
        assert [value[0] for value in batch.results(timeout=60, cleanup=False)] == [0, 1]
        assert dict(place.attach("grp-g").statuses()) == dict.fromkeys(range(2), JobStatus.SUCCEEDED)
        assert tracemalloc.get_traced_memory()[1] < 3 * size
    finally:
        tracemalloc.stop()


@pytest.mark.attack
def test_a_payload_in_place_of_a_lanes_is_not_loaded(place: Here, tmp_path: Path) -> None:
    """Neither one of other bytes nor one that fills the memory: of that no more is read than is due."""
    batch = place.map(slowly, [str(tmp_path)] * 2, lanes=1, infrastructure_retries=3)
    wait_for(lambda: batch.statuses()[0] == (0, JobStatus.RUNNING))
    lane = lane_id(batch.group_id, 0)
    (payload,) = place.backend.store.list(f"jobs/{lane}/", object_names.payload(lane, "*"))
    place.backend.store.delete(payload.name)
    place.backend.store.create_if_absent(payload.name, bytes(4 * payload.size))
    known = find(place.backend, lane)
    assert known is not None
    os.kill(place.runner_of(known.worker), signal.SIGKILL)
    found = batch.results(timeout=60, cleanup=False, return_exceptions=True)
    assert {type(each) for each in found} == {JobMisconfigured}
    assert "not the one this job was submitted with" in str(found[0])
    assert "larger than" in str(found[0])


@pytest.mark.attack
@pytest.mark.parametrize(("field", "value"), [("lanes", 1), ("lanes", 10**9), ("total_expected", 3)])
def test_a_manifest_that_its_jobs_deny_is_refused(place: Here, field: str, value: int) -> None:
    batch = place.map(whoami, range(4))
    batch.results(timeout=60, cleanup=False)
    name = object_names.batch(batch.group_id, "manifest.json")
    told = {**json.loads(place.backend.store.read(name)), field: value}
    place.backend.store.delete(name)
    place.backend.store.create_if_absent(name, json.dumps(told).encode())
    with pytest.raises(MalformedObject, match="lanes"):
        place.attach(batch.group_id)


def test_whoever_attaches_reads_states_at_once(place: Here, tmp_path: Path) -> None:
    """A program that asks once, as the command does, gets what another would get later."""
    batch = place.map(odd, [0, 1, 2], lanes=1)
    batch.wait(timeout=60)
    told = [(0, JobStatus.SUCCEEDED), (1, JobStatus.FAILED), (2, JobStatus.SUCCEEDED)]
    assert place.attach(batch.group_id).statuses() == told
    other = place.map(slowly, [str(tmp_path)] * 2, lanes=1)
    wait_for(lambda: other.statuses()[0] == (0, JobStatus.RUNNING))
    other.cancel()
    assert {status for _, status in place.attach(other.group_id).statuses()} == {JobStatus.CANCELLED}


_CLIENT = """
import sys
from tests.warm.test_maps import slowly
import kinetic_core

function = kinetic_core.run(accelerator="cpu", backend="local", warm="30s")(slowly)
batch = function.run_async_map([sys.argv[1]] * 5, max_concurrent=2, group_id="grp-k")
print("submitted", flush=True)
batch.wait()
"""


def test_a_map_whose_client_is_killed_goes_on(tmp_path: Path) -> None:
    client = subprocess.Popen([sys.executable, "-c", _CLIENT, str(tmp_path)], stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"submitted\n"
    client.kill()
    client.wait()
    client.stdout.close()
    (tmp_path / "end").touch()
    first, second = (kinetic_core.attach_batch("grp-k", backend="local") for _ in range(2))
    assert first.results(timeout=60, cleanup=False) == ["value"] * 5
    assert second.results(timeout=60, cleanup=False) == ["value"] * 5


def test_a_map_is_explained_while_it_runs(place: Here, tmp_path: Path) -> None:
    """That of an input and of its lane say what they do, and not that they wait."""
    batch = place.map(slowly, [str(tmp_path)] * 3, lanes=1)
    first, last = (Call.at(place.backend, batch.jobs[index]) for index in (0, 2))
    lane = find(place.backend, lane_id(batch.group_id, 0))
    assert lane is not None
    wait_for(lambda: phases_of(explain(place.backend, lane))[-1:] == ["function"])
    wait_for(lambda: phases_of(first.explain())[-1:] == ["function"])
    assert phases_of(last.explain()) == ["queue"]
    (tmp_path / "end").touch()
    batch.wait(timeout=60)
    assert phases_of(last.explain())[0] == "queue"
    assert "unknown" not in phases_of(last.explain())
    assert "function" in phases_of(explain(place.backend, lane))


def test_the_time_of_a_lane_is_not_that_of_an_input(place: Here, tmp_path: Path) -> None:
    batch = place.map(slowly, [str(tmp_path)] * 2, lanes=1)
    lane = find(place.backend, lane_id(batch.group_id, 0))
    assert lane is not None
    wait_for(lambda: batch.statuses()[0] == (0, JobStatus.RUNNING))
    os.kill(place.runner_of(lane.worker), signal.SIGKILL)
    wait_for(lambda: observe(place.backend, lane).started_at is not None)  # in a pod of its own
    manifest = read_manifest(place.backend.store, batch.group_id)
    whole = checked_reference(manifest["reference"], batch.group_id, place.backend)
    board = Board(2)
    board.fill(batch.jobs)
    LaneWatch(place.backend, whole, 1, board).start()

    def read(question: Callable[[], Any]) -> Any:
        with board.changed:
            return question()

    wait_for(lambda: getattr(read(board.state), "started_at", None))
    assert read(board.counts).running == 1
    assert read(board.counts).slowest is None
    (tmp_path / "end").touch()
    wait_for(lambda: read(board.counts).done == 2)
    board.close()


def phases_of(explanation: Explanation) -> list[str]:
    return [phase.name for phase in explanation.phases]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"fail_fast": True, "cancel_running_on_fail": True}, "cancel_running_on_fail="),
        ({"max_concurrent": None}, "max_concurrent="),
        ({"max_concurrent": 1001}, "at most 1000 workers"),
    ],
)
def test_what_a_map_on_workers_has_not_is_refused(asked: dict[str, Any], named: str) -> None:
    function = kinetic_core.run(accelerator="cpu", backend="local", warm="1m")(whoami)
    with pytest.raises(InvalidRequest, match=named):
        function.run_async_map([1, 2], **{"max_concurrent": 1, **asked})
    assert not [*Path(str(read_settings().local_store)).glob("*")], "nothing was stored"


def test_a_map_alone_can_be_warm() -> None:
    place = Path(str(read_settings().local_store))
    function = kinetic_core.run(accelerator="cpu", backend="local")(whoami)
    try:
        batch = function.run_async_map([1, 2], warm=2, max_concurrent=1)
        assert [number for number, *_ in batch.results()] == [1, 2]
        assert {job.worker for job in batch.jobs if job is not None} == {batch.group_id}, "they ran on a lane"
        batch.close()
    finally:
        end_local_jobs(place)
    with pytest.raises(InvalidRequest, match="warm= does not go with queue="):
        kinetic_core.run(accelerator="cpu", queue="q")(whoami).run_async_map(["a"], warm=2, max_concurrent=1)
    with pytest.raises(InvalidRequest, match="warm='soon' must be seconds"):
        function.run_async_map(["a"], warm="soon", max_concurrent=1)


@pytest.mark.parametrize("option", [{"hang_after": 600}, {"budget": 1.0}, {"reuse": "fork"}])
def test_an_option_of_single_jobs_is_refused(option: dict[str, Any]) -> None:
    function = kinetic_core.run(accelerator="cpu", backend="local", warm="1m", **option)(whoami)
    with pytest.raises(InvalidRequest, match=f"warm= does not go with {next(iter(option))}="):
        function.run_async_map([1, 2], max_concurrent=1)
    assert not [*Path(str(read_settings().local_store)).glob("*")], "nothing was stored"

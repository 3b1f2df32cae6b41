"""Batches of this machine under ids of one's own: the same for whoever asks, whole again, run again."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core import BatchError
from kinetic_core._runner import object_names
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.errors import InvalidRequest, JobCancelled, JobConflict, WaitTimeout
from kinetic_core.settings import read_settings
from tests.batches.scripts import own_id, run_script, supervisors
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("local_jobs")


@kinetic_core.run(accelerator="cpu", backend="local")
def counted(folder: str, number: int) -> int:
    """Leaves a file for each time; waits for `go` if the number is 100 or more, fails if `fail-N` exists."""
    import time

    here = Path(folder)
    (here / f"run-{number}-{time.time_ns()}").touch()
    while number >= 100 and not (here / "go").exists():
        time.sleep(0.01)
    if (here / f"fail-{number}").exists():
        raise ValueError(number)
    return re.RegexFlag(number)  # an int that is pickled, and so read only if its key is there


def sweep(folder: Path, *numbers: int, **options: Any) -> kinetic_core.BatchHandle:
    options = {"group_id": own_id(folder), **options}
    return counted.run_async_map([(str(folder), number) for number in numbers], **options)


def runs(folder: Path) -> list[int]:
    """The numbers that ran, each as often as it did."""
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("run-*"))


def store() -> Any:
    return LocalBackend(read_settings().local_store).store


@pytest.mark.promise("batches: Local backend: same semantics, `group_id=` and `skip_done=` too")
def test_the_same_call_is_the_same_batch(tmp_path: Path) -> None:
    first = sweep(tmp_path, 1, 2, 3, name="first", tags={"of": "mine"})
    assert first.results(timeout=90) == [1, 2, 3]
    wait_for(lambda: not any(store().list(f"jobs/{own_id(tmp_path)}-2/payload-")))  # it was cleaned up
    again = sweep(tmp_path, 1, 2, 3, name="second", max_concurrent=1)
    assert again.results(timeout=90) == [1, 2, 3]
    assert (again.group_id, again.name, again.tags) == (own_id(tmp_path), "first", {"of": "mine"})
    assert runs(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("options", [{}, {"fail_fast": True}, {"input_mode": "args"}], ids=str)
def test_another_call_under_that_id_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    sweep(tmp_path, 1, 2).wait(timeout=90)
    with pytest.raises(JobConflict, match="is another batch"):
        sweep(tmp_path, 1, 2 if options else 3, **options)
    assert runs(tmp_path) == [1, 2]


def test_an_id_that_was_drawn_is_nobodys_to_use(tmp_path: Path) -> None:
    drawn = sweep(tmp_path, 1, group_id=None)
    with pytest.raises(JobConflict):
        sweep(tmp_path, 1, group_id=drawn.group_id)
    drawn.wait(timeout=90)


def test_ids_that_begin_alike_are_not_mixed_up(tmp_path: Path) -> None:
    one = sweep(tmp_path, 100, 101, 102, group_id="grp-alike", max_concurrent=1)
    other = sweep(tmp_path, 7, group_id="grp-alike-2")
    assert other.results(timeout=90) == [7]
    (tmp_path / "go").touch()
    assert one.results(timeout=90) == [100, 101, 102]


def test_what_cannot_be_sent_is_told_to_each_who_asks() -> None:
    def both(item: object) -> str:
        return str(item)

    inputs = [1, threading.Lock()]
    function = kinetic_core.run(accelerator="cpu", backend="local")(both)
    for _ in range(2):
        batch = function.run_async_map(inputs, group_id="grp-locked")
        assert list(batch.submission_failures) == [1]
        values = batch.results(return_exceptions=True, timeout=90)
        assert values[0] == "1"
        assert "lock" in str(values[1])


@pytest.mark.promise("batches: Local backend: same semantics, `group_id=` and `skip_done=` too")
def test_what_failed_is_run_again_when_all_has_ended(tmp_path: Path) -> None:
    (tmp_path / "fail-2").touch()
    (tmp_path / "fail-100").touch()
    first = sweep(tmp_path, 1, 2, 100, retries=1)
    wait_for(lambda: runs(tmp_path) == [1, 2, 2, 100])
    assert sweep(tmp_path, 1, 2, 100, retries=1, skip_done=True).group_id == own_id(tmp_path)
    (tmp_path / "go").touch()
    with pytest.raises(BatchError, match="2 of 3 inputs"):
        first.results(timeout=90)
    assert runs(tmp_path) == [1, 2, 2, 100, 100], "nothing was run again while one still ran"
    with pytest.raises(BatchError, match="2 of 3 inputs"):
        sweep(tmp_path, 1, 2, 100, retries=1).results(timeout=90)
    assert len(runs(tmp_path)) == 5, "nobody had asked for it"

    (tmp_path / "fail-2").unlink()
    (tmp_path / "fail-100").unlink()
    second = sweep(tmp_path, 1, 2, 100, retries=1, skip_done=True)
    assert second.results(timeout=90) == [1, 2, 100]
    assert [job.observe().attempt for job in second.jobs if job] == [0, 0, 0]
    assert runs(tmp_path) == [1, 2, 2, 2, 100, 100, 100]
    third = sweep(tmp_path, 1, 2, 100, retries=1, skip_done=True)
    assert third.submission_failures == {}
    assert len(runs(tmp_path)) == 7, "everything has a value"


def test_a_batch_that_was_stopped_goes_on(tmp_path: Path) -> None:
    (tmp_path / "fail-1").touch()
    first = sweep(tmp_path, 1, 2, 3, max_concurrent=1, fail_fast=True)
    first.wait(timeout=90)
    assert runs(tmp_path) == [1]
    (tmp_path / "fail-1").unlink()
    second = sweep(tmp_path, 1, 2, 3, max_concurrent=1, fail_fast=True, skip_done=True)
    assert second.results(timeout=90) == [1, 2, 3]


def test_a_batch_that_was_cancelled_goes_on(tmp_path: Path) -> None:
    first = sweep(tmp_path, 100, 101, max_concurrent=1)
    wait_for(lambda: runs(tmp_path) == [100])
    first.cancel()
    stopped = sweep(tmp_path, 100, 101, max_concurrent=1)
    assert isinstance(stopped.results(return_exceptions=True, timeout=90)[1], JobCancelled)
    (tmp_path / "go").touch()
    second = sweep(tmp_path, 100, 101, max_concurrent=1, skip_done=True)
    assert second.results(timeout=90) == [100, 101]
    assert runs(tmp_path) == [100, 100, 101]


def test_what_was_removed_is_not_made_again(tmp_path: Path) -> None:
    first = sweep(tmp_path, 1, 2)
    assert first.results(cleanup=False, timeout=90) == [1, 2]
    assert first.jobs[0] is not None
    first.jobs[0].cleanup()
    again = sweep(tmp_path, 1, 2)
    with pytest.raises(BatchError) as caught:
        again.results(cleanup=False, timeout=90)
    assert caught.value.partial_results == [None, 2]
    again.cleanup()
    with pytest.raises(FileNotFoundError):
        kinetic_core.attach_batch(own_id(tmp_path))
    assert sweep(tmp_path, 1, 2).results(timeout=90) == [1, 2]
    assert runs(tmp_path) == [1, 1, 2, 2]


def killed(folder: Path) -> str:
    """A script whose submission is killed when two of four jobs are there, while `kills` exists."""
    return (
        "import os\n"
        f"made = Path(os.environ['KINETIC_LOCAL_STORE'], 'cluster', 'default', '{own_id(folder)}-1.json')\n"
        "class Third:\n"
        "    def __reduce__(self):\n"
        "        if Path('kills').exists() and made.exists(): signal.raise_signal(signal.SIGKILL)\n"
        "        return int, (102,)\n"
        "if __name__ == '__main__':\n"
        "    inputs = [100, 101, Third(), 103]\n"
        f"    batch = work.run_async_map(inputs, max_concurrent=1, group_id={own_id(folder)!r})\n"
        "    print(batch.results(timeout=60, return_exceptions=True), flush=True)"
    )


@pytest.fixture
def half_made(tmp_path: Path, local_jobs: Path) -> None:
    """A batch of four, of which a submitter that was killed has made two."""
    (tmp_path / "kills").touch()
    with run_script(tmp_path, killed(tmp_path)) as script:
        assert script.wait(90) < 0
    (tmp_path / "kills").unlink()
    assert not supervisors(own_id(tmp_path))
    assert not list(tmp_path.glob("ran-*"))


@pytest.mark.usefixtures("half_made")
def test_the_same_call_completes_what_a_killed_submitter_left(tmp_path: Path) -> None:
    store().create_if_absent(
        object_names.payload(f"{own_id(tmp_path)}-2", "0" * 64), b"all that it had made of the third"
    )
    (tmp_path / "go").touch()
    with run_script(tmp_path, killed(tmp_path)) as script:
        assert script.communicate(timeout=60)[0] == "[100, 101, 102, 103]\n"
    assert len(list(tmp_path.glob("attempt-*"))) == 4
    assert json.loads(store().read(object_names.finished(own_id(tmp_path)))) == {"dropped": []}


@pytest.mark.usefixtures("half_made")
def test_it_is_completed_while_its_first_jobs_run_already(tmp_path: Path) -> None:
    seen = kinetic_core.attach_batch(own_id(tmp_path), poll_interval=0.02)
    with pytest.raises(WaitTimeout):  # whoever waits brings a supervisor
        seen.wait(timeout=1)
    wait_for(lambda: len(list(tmp_path.glob("ran-*"))) == 1)
    wait_for(lambda: store().find(object_names.finished(own_id(tmp_path))) is not None)
    with run_script(tmp_path, killed(tmp_path)) as script:
        wait_for(lambda: store().find(object_names.handle(f"{own_id(tmp_path)}-3")) is not None)
        wait_for(
            lambda: len(supervisors(own_id(tmp_path))) == 3
        )  # the next, which waits, the first, its agent
        (tmp_path / "go").touch()
        assert script.communicate(timeout=60)[0] == "[100, 101, 102, 103]\n"
    assert seen.results(timeout=90, return_exceptions=True)[:2] == [100, 101]
    assert max(int(path.name[4:]) for path in tmp_path.glob("saw-*")) == 1
    assert len(list(tmp_path.glob("attempt-*"))) == 4
    wait_for(lambda: not supervisors(own_id(tmp_path)))


@pytest.mark.usefixtures("half_made")
def test_one_that_was_cancelled_half_made_stays_cancelled(tmp_path: Path) -> None:
    kinetic_core.attach_batch(own_id(tmp_path), poll_interval=0.02).cancel()
    (tmp_path / "go").touch()
    with run_script(tmp_path, killed(tmp_path)) as script:
        told = script.communicate(timeout=60)[0]
    assert told.count("JobCancelled") == 4
    assert len(list(tmp_path.glob("ran-*"))) <= 1


@pytest.mark.promise("batches: Duplicate `run_async_map` with one id, two machines")
@pytest.mark.parametrize("again", [False, True], ids=["made", "again"])
def test_two_processes_at_once_lead_to_one_set_of_jobs(tmp_path: Path, again: bool) -> None:
    body = (
        "import os\n"
        "if __name__ == '__main__':\n"
        "    while not Path('start').exists(): time.sleep(0.001)\n"
        f"    batch = work.run_async_map(range(100, 110), group_id={own_id(tmp_path)!r}, skip_done={again})\n"
        "    Path(f'has-{os.getpid()}').touch()\n"
        "    print(batch.results(timeout=60, return_exceptions=True, cleanup=False), flush=True)"
    )
    if again:
        for name in ("start", *(f"fail-{number}" for number in range(100, 110))):
            (tmp_path / name).touch()
        with run_script(tmp_path, body) as script:
            assert script.communicate(timeout=60)[0].count("ValueError") == 10
        for path in (*tmp_path.glob("*-*"), tmp_path / "start"):
            path.unlink()
    with run_script(tmp_path, body) as one, run_script(tmp_path, body) as other:
        (tmp_path / "start").touch()
        wait_for(lambda: len(list(tmp_path.glob("has-*"))) == 2)
        (tmp_path / "go").touch()
        for script in (one, other):
            assert script.communicate(timeout=60)[0] == f"{list(range(100, 110))}\n"
    assert len(list(tmp_path.glob("attempt-*"))) == 10


@pytest.mark.parametrize("group_id", ["sweep", "grp-", "grp-A", "grp-" + 40 * "a"])
def test_bad_ids_are_refused(tmp_path: Path, group_id: str) -> None:
    with pytest.raises(InvalidRequest, match="group_id"):
        sweep(tmp_path, 1, group_id=group_id)


def cancelled(folder: Path) -> kinetic_core.BatchHandle:
    """A batch of three inputs, of which one ran until it was cancelled."""
    batch = sweep(folder, 100, 101, 102, max_concurrent=1)
    wait_for(lambda: runs(folder) == [100])
    batch.cancel()
    wait_for(lambda: not supervisors(own_id(folder)))
    (folder / "go").touch()
    return batch


def test_what_was_cancelled_runs_again_if_asked_for(tmp_path: Path) -> None:
    cancelled(tmp_path)
    asked = 100, 101, 102
    assert sweep(tmp_path, *asked, max_concurrent=1).status_counts() == {"CANCELLED": 3}
    assert sweep(tmp_path, *asked, max_concurrent=1, skip_done=True).results(timeout=90) == [*asked]
    assert runs(tmp_path) == [100, *asked]


@pytest.mark.parametrize("k8s", [True, False])
def test_a_cancelled_batch_that_was_removed_runs_anew(tmp_path: Path, k8s: bool) -> None:
    cancelled(tmp_path).cleanup(k8s=k8s)
    assert sweep(tmp_path, 100, 101, 102, max_concurrent=1).results(timeout=90) == [100, 101, 102]
    assert runs(tmp_path) == [100, 100, 101, 102]

"""A job's lines reach the task's log once, in order, whole, and not too many at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from airflow_provider.task_logs import Cursor, LineBudget, LogTail, wait_with_log
from kinetic_core._runner.lines import LONGEST
from kinetic_core.backends.base import Backend
from kinetic_core.errors import ClusterError, ClusterUnreachable, KineticError
from kinetic_core.jobs.observe import observe, wait
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("local_jobs")


@kinetic_core.run(accelerator="cpu")
def talk(folder: str, lines: int, fail_first: bool = False) -> None:
    import time

    for number in range(lines):
        print(f"line {number}", flush=True)
    print("x" * 5000, flush=True)
    print("unfinished", end="", flush=True)
    Path(folder, "said").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.01)
    if fail_first and not Path(folder, "failed").exists():
        Path(folder, "failed").touch()
        raise ValueError("the first time")


def test_live_lines_are_whole_and_the_rest_follows_at_the_end(tmp_path: Path) -> None:
    handle = talk.run_async(str(tmp_path), 5)
    wait_for((tmp_path / "said").exists)
    tail = LogTail(handle.place, handle)
    seen: list[str] = []
    wait_for(lambda: seen.extend(tail.live(3)) or seen)
    later = LogTail(handle.place, handle, Cursor.from_list(tail.cursor.to_list()))
    wait_for(lambda: seen.extend(later.live(3)) or any(line.startswith("xxx") for line in seen))
    assert seen[-6:-1] == [f"line {number}" for number in range(5)]
    assert seen[-1] == "x" * LONGEST + "... (5000 bytes)"
    (tmp_path / "go").touch()
    wait(handle.place, handle)
    assert later.rest(0) == ["unfinished"]
    assert later.rest(0) == []
    handle.result()


def test_of_a_long_rest_the_last_lines_are_shown(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    handle = talk.run_async(str(tmp_path), 50)
    wait(handle.place, handle)
    shown = LogTail(handle.place, handle).rest(0, limit=3)
    assert "49 lines left out" in shown[0]
    assert shown[-1] == "unfinished"
    assert len(shown) == 4
    handle.result()


@kinetic_core.run(accelerator="cpu", retries=1)
def twice(folder: str) -> None:
    import time

    is_first = not Path(folder, "failed").exists()
    print("first" if is_first else "second", flush=True)
    if is_first:
        print("::group::never ended", flush=True)
        Path(folder, "failed").touch()
        while not Path(folder, "go").exists():
            time.sleep(0.01)
        raise ValueError("the first time")


@pytest.mark.promise("scale: Log groups per attempt")
def test_an_attempt_that_failed_is_folded(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    handle = twice.run_async(str(tmp_path))
    wait(handle.place, handle)
    lines = LogTail(handle.place, handle).rest(observe(handle.place, handle).attempt)
    assert lines[:3] == [f"::group::attempt 1 of {handle.job_id}", "first", "::group::never ended"]
    ends = lines.index(f"attempt 2 of {handle.job_id}")
    assert lines[ends - 2 :] == ["::endgroup::", "::endgroup::", f"attempt 2 of {handle.job_id}", "second"]
    handle.result()


def test_an_attempt_that_was_shown_while_it_ran_is_not_folded(tmp_path: Path) -> None:
    handle = twice.run_async(str(tmp_path))
    wait_for((tmp_path / "failed").exists)
    tail = LogTail(handle.place, handle)
    seen: list[str] = []
    wait_for(lambda: seen.extend(tail.live(100)) or "::group::never ended" in seen)
    (tmp_path / "go").touch()
    wait(handle.place, handle)
    later = LogTail(handle.place, handle, Cursor.from_list(tail.cursor.to_list()))
    rest = later.rest(1)
    assert seen[0] == "first", "a job of one attempt has no title"
    assert rest == ["::endgroup::", f"attempt 2 of {handle.job_id}", "second"]
    handle.result()


def test_an_attempt_that_is_over_is_folded_live(tmp_path: Path) -> None:
    """In pieces, each a group of its own, so that nothing hides what follows if nobody shows the next one."""
    (tmp_path / "go").touch()
    handle = twice.run_async(str(tmp_path))
    wait(handle.place, handle)
    tail = LogTail(handle.place, handle)
    titles = [f"attempt {number} of {handle.job_id}" for number in (1, 2)]
    assert tail.live(1) == [f"::group::{titles[0]}", "first", "::endgroup::"]
    later = [f"::group::the rest of {titles[0]}", "::group::never ended", "::endgroup::", "::endgroup::"]
    assert tail.live(1) == later
    assert tail.live(100) == [titles[1], "second"]
    assert tail.rest(1) == []
    whole = LogTail(handle.place, handle).live(100)
    first = [f"::group::{titles[0]}", "first", "::group::never ended", "::endgroup::", "::endgroup::"]
    assert whole == [*first, titles[1], "second"]
    handle.result()


@kinetic_core.run(accelerator="cpu", retries=1)
def two_that_wait(folder: str) -> None:
    import time

    number = len(list(Path(folder).glob("began-*")))
    print(f"::group::of attempt {number}", flush=True)
    print(f"line of attempt {number}", flush=True)
    Path(folder, f"began-{number}").touch()
    while not Path(folder, f"go-{number}").exists():
        time.sleep(0.01)
    if number == 0:
        raise ValueError("the first time")


def test_groups_that_an_attempt_left_open_end_with_it(tmp_path: Path) -> None:
    """Else the page would show the next attempt, and how the job ended, within them, folded."""
    handle = two_that_wait.run_async(str(tmp_path))
    tail = LogTail(handle.place, handle)
    seen: list[str] = []
    wait_for(lambda: seen.extend(tail.live(100)) or "line of attempt 0" in seen)
    assert seen == ["::group::of attempt 0", "line of attempt 0"]
    tail = LogTail(handle.place, handle, Cursor.from_list(tail.cursor.to_list()))
    (tmp_path / "go-0").touch()
    wait_for(lambda: seen.extend(tail.live(100)) or "line of attempt 1" in seen)
    title = f"attempt 2 of {handle.job_id}"
    assert seen[-4:] == ["::endgroup::", title, "::group::of attempt 1", "line of attempt 1"]
    tail = LogTail(handle.place, handle, Cursor.from_list(tail.cursor.to_list()))
    (tmp_path / "go-1").touch()
    wait(handle.place, handle)
    assert tail.rest(1) == ["::endgroup::"]
    handle.result()


@kinetic_core.run(accelerator="cpu", retries=1)
def cut_off(folder: str) -> None:
    import time

    if not Path(folder, "failed").exists():
        Path(folder, "failed").touch()
        print("first", flush=True)
        print("half a li", end="", flush=True)
        raise ValueError("the first time")
    print("second", flush=True)
    while not Path(folder, "go").exists():
        time.sleep(0.01)


def test_a_line_that_an_attempt_left_unfinished_ends(tmp_path: Path) -> None:
    """The next attempt is shown live behind it."""
    handle = cut_off.run_async(str(tmp_path))
    tail = LogTail(handle.place, handle)
    seen: list[str] = []
    wait_for(lambda: seen.extend(tail.live(100)) or "second" in seen)
    shown = [line for line in seen if "group::" not in line]  # whether it is folded, its speed decides
    assert shown == ["first", "half a li", f"attempt 2 of {handle.job_id}", "second"]
    (tmp_path / "go").touch()
    wait(handle.place, handle)
    assert tail.rest(1) == []
    handle.result()


@pytest.mark.parametrize(
    ("values", "cursor"),
    [
        (None, Cursor()),
        ([], Cursor()),
        ([1, 7], Cursor(1, 7)),
        ([1, 7, 1], Cursor(1, 7, in_line=True)),
        ([1, 7, 0, 2], Cursor(1, 7, groups=2)),
    ],
)
def test_a_position_travels_as_numbers(values: list[int] | None, cursor: Cursor) -> None:
    assert Cursor.from_list(values) == cursor
    assert Cursor.from_list(cursor.to_list()) == cursor


@pytest.mark.promise("airflow: What is finished before deferral never defers")
def test_waiting_shows_lines_and_gives_up_when_patience_ends(tmp_path: Path) -> None:
    handle = talk.run_async(str(tmp_path), 2)
    wait_for((tmp_path / "said").exists)
    said: list[str] = []
    tail = LogTail(handle.place, handle)
    assert wait_with_log(handle, tail, said.append, observe(handle.place, handle), timeout=0.1) is None
    assert "line 1" in said
    (tmp_path / "go").touch()
    ended = wait_with_log(handle, tail, said.append, observe(handle.place, handle))
    assert ended is not None
    assert ended.is_terminal
    assert said.count("line 1") == 1
    handle.result()


class Interrupted:
    """The backend of a job, the reading of whose log fails on request."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.error: KineticError | None = None
        self.attempts: set[int] = set()
        """Attempts whose reading fails; the others have an answer."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def log(self, namespace: str, job_id: str, attempt: int, *where: int) -> bytes | None:
        if self.error is not None and attempt in self.attempts:
            raise self.error
        return self._backend.log(namespace, job_id, attempt, *where)


BUSY = ClusterUnreachable("GET /pods: the API server does not answer")


def test_waiting_outlives_a_log_that_cannot_be_read(tmp_path: Path) -> None:
    handle = talk.run_async(str(tmp_path), 2)
    wait_for((tmp_path / "said").exists)
    said: list[str] = []
    backend: Any = Interrupted(handle.place)
    backend.error, backend.attempts = BUSY, {0}
    tail, known = LogTail(backend, handle), observe(handle.place, handle)
    assert wait_with_log(handle, tail, said.append, known, timeout=0) is None
    backend.error = ClusterError("GET /pods: forbidden", 403)
    with pytest.raises(ClusterError, match="forbidden"):
        wait_with_log(handle, tail, said.append, known, timeout=0)
    assert "line 0" not in said
    backend.error = None
    assert wait_with_log(handle, tail, said.append, known, timeout=0) is None
    assert said.count("line 0") == 1
    (tmp_path / "go").touch()
    handle.result()


def test_lines_that_were_read_before_an_error_are_shown(tmp_path: Path) -> None:
    handle = talk.run_async(str(tmp_path), 2)
    wait_for((tmp_path / "said").exists)
    backend: Any = Interrupted(handle.place)
    backend.error, backend.attempts = BUSY, {1}
    tail = LogTail(backend, handle)
    assert [line[:6] for line in tail.live(100)] == ["line 0", "line 1", "xxxxxx"]
    with pytest.raises(ClusterUnreachable):
        tail.live(100)
    (tmp_path / "go").touch()
    handle.result()


@pytest.mark.promise("airflow: The local path has its own answer")
def test_the_budget_is_shared_and_refills() -> None:
    now = 0.0
    budget = LineBudget(200.0, clock=lambda: now)
    assert budget.left() == 200
    budget.spend(250)
    assert budget.left() == 0
    now = 0.5
    assert budget.left() == 50
    now = 100.0
    assert budget.left() == 200


class Written:
    """A task's log into which a job's pods have written some bytes."""

    def __init__(self, shown: dict[tuple[int, int], int]) -> None:
        self._shown = shown

    def shown(self, _reference: object, _client: object) -> dict[tuple[int, int], int]:
        return self._shown


@pytest.mark.promise("airflow: Where it cannot, the worker copies on resume")
def test_lines_the_pod_wrote_to_the_tasks_log_come_once(tmp_path: Path) -> None:
    handle = talk.run_async(str(tmp_path), 3)
    wait_for((tmp_path / "said").exists)
    written = Written({(0, 0): len("line 0\nline 1\n")})
    tail = LogTail(handle.place, handle, remote=written, silent=True)  # type: ignore[arg-type]
    assert tail.live(100) == []
    (tmp_path / "go").touch()
    wait(handle.place, handle)
    assert [line[:6] for line in tail.rest(0)] == ["line 2", "xxxxxx", "unfini"]
    handle.result()

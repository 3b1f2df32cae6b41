"""What user code does to its processes, signals and disk ends as what it is, and with its attempt."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core._runner import wire
from kinetic_core.errors import JobFailed, JobLost, JobOutOfDisk, UnserializableResult
from tests.conftest import is_alive, wait_for
from tests.runner.attempts import Attempts, appending

pytestmark = pytest.mark.attack


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


def pids(folder: Path) -> list[int]:
    return [int(file.name) for file in folder.iterdir()]


def leave_processes(folder: Path) -> None:
    """Start a process in a session of its own, and one that process 1 would inherit."""
    folder.mkdir(exist_ok=True)
    program = "touch $0/$$; exec sleep 600"
    subprocess.Popen(["sh", "-c", program, str(folder)], start_new_session=True)
    subprocess.run(["sh", "-c", f"setsid sh -c '{program}' $0 &", str(folder)], check=True)
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.01)


def test_a_signal_to_its_own_group_is_the_functions_end(attempts: Attempts) -> None:
    runs = attempts.folder / "runs"

    def work() -> None:
        with runs.open("a") as stream:
            stream.write("x")
        os.killpg(0, signal.SIGTERM)
        time.sleep(60)

    assert attempts.submit(work).run() == wire.EXIT_USER_ERROR
    with pytest.raises(JobFailed, match="ended by SIGTERM"):
        attempts.outcome().value_or_raise()
    assert runs.read_text() == "x"


@pytest.mark.parametrize("fails", [False, True])
def test_what_left_its_group_dies_with_the_attempt(attempts: Attempts, fails: bool) -> None:
    def work() -> None:
        leave_processes(attempts.folder / "left")
        if fails:
            os.kill(os.getpid(), signal.SIGKILL)

    attempts.submit(work).run()
    left = pids(attempts.folder / "left")
    assert len(left) == 2
    assert not any(is_alive(pid) for pid in left)
    assert "do not die" not in attempts.log  # the runner waits until they are dead


@pytest.mark.parametrize("backend", ["gke", "local"])
def test_only_local_jobs_leave_what_calls_itself_detached(attempts: Attempts, backend: str) -> None:
    left = attempts.folder / "left"

    def work() -> None:
        left.mkdir()
        program = "touch $0/$$; exec sleep 600"
        environment = {**os.environ, "KINETIC_DETACHED": "1"}
        subprocess.Popen(["sh", "-c", program, str(left)], env=environment, start_new_session=True)
        while not list(left.iterdir()):
            time.sleep(0.01)

    assert attempts.submit(work).run(KINETIC_BACKEND=backend) == wire.EXIT_SUCCEEDED
    (pid,) = pids(left)
    survives = is_alive(pid)
    if survives:
        os.kill(pid, signal.SIGKILL)
    assert survives is (backend == "local")


def test_user_code_dies_with_a_killed_runner(attempts: Attempts) -> None:
    pid = attempts.folder / "pid"

    def work() -> None:
        pid.write_text(str(os.getpid()))
        time.sleep(600)  # longer than anybody waits below

    runner = attempts.submit(work).start()
    wait_for(lambda: pid.exists() and pid.read_text())
    runner.kill()
    runner.wait()
    wait_for(lambda: not is_alive(int(pid.read_text())))


@pytest.fixture
def jobs_with_helpers(local_jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real jobs in whose project is `tests/conftest.py` too."""
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(Path(__file__).parents[1]))


@pytest.mark.usefixtures("jobs_with_helpers")
def test_attempts_of_this_machine_do_not_overlap(tmp_path: Path) -> None:
    def work() -> None:
        alive = [pid for folder in tmp_path.glob("left*") for pid in pids(folder) if is_alive(pid)]
        with (tmp_path / "seen").open("a") as stream:
            stream.write(f"{alive}")
        leave_processes(tmp_path / f"left{time.time_ns()}")
        raise ValueError("again")

    with pytest.raises(ValueError, match="again"):
        kinetic_core.run(accelerator="cpu", retries=1)(work)()
    assert (tmp_path / "seen").read_text() == "[][]"
    assert not any(is_alive(pid) for folder in tmp_path.glob("left*") for pid in pids(folder))


@pytest.mark.usefixtures("jobs_with_helpers")
def test_what_a_killed_runner_leaves_dies_before_the_next_try(tmp_path: Path) -> None:
    left = tmp_path / "left"

    def work() -> list[int]:
        if left.exists():
            return [pid for pid in pids(left) if is_alive(pid)]
        leave_processes(left)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)  # its runner takes it along
        return []

    assert kinetic_core.run(accelerator="cpu", retries=1)(work)() == []
    assert len(pids(left)) == 2


@pytest.mark.slow
@pytest.mark.usefixtures("local_jobs")
def test_a_job_that_a_job_submitted_outlives_it(tmp_path: Path) -> None:
    def later() -> int:
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return 5

    def work() -> str:
        os.environ |= {"KINETIC_BACKEND": "local", "KINETIC_LOCAL_STORE": store}
        return kinetic_core.run(accelerator="cpu")(later).run_async().job_id

    store = os.environ["KINETIC_LOCAL_STORE"]
    handle = kinetic_core.attach(kinetic_core.run(accelerator="cpu")(work)())
    (tmp_path / "go").touch()
    assert handle.result(timeout=60) == 5


class Slow:
    """Its pickle takes until a file is there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        (self.folder / "encoding").touch()
        while not (self.folder / "go").exists():
            time.sleep(0.01)
        return str, ("the value",)


def with_own_handler(value: Slow) -> Slow:
    def handle(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, handle)
    return value


@pytest.mark.parametrize("function", [lambda value: value, with_own_handler], ids=["ours", "theirs"])
def test_sigterm_does_not_discard_a_value(attempts: Attempts, function: Callable[[Slow], Slow]) -> None:
    runner = attempts.submit(function, Shipped(attempts.folder)).start(KINETIC_GRACE_SECONDS="60")
    wait_for((attempts.folder / "encoding").exists)
    runner.send_signal(signal.SIGTERM)
    wait_for((attempts.folder / "work/0/preempted").exists)  # told just before the function's process is
    time.sleep(0.1)
    (attempts.folder / "go").touch()
    assert runner.wait(timeout=60) == wire.EXIT_SUCCEEDED
    assert attempts.outcome().value_or_raise() == "the value"


class Shipped:
    """Becomes a `Slow` in the job: one that is pickled here would wait here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return Slow, (self.folder,)


def test_a_timer_of_user_code_does_not_discard_a_value(attempts: Attempts) -> None:
    def work(value: Slow) -> Slow:
        def ring(*_: object) -> None:
            raise TimeoutError

        def allow() -> None:
            time.sleep(0.3)
            (value.folder / "go").touch()

        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        threading.Thread(target=allow).start()
        return value

    assert attempts.submit(work, Shipped(attempts.folder)).run() == wire.EXIT_SUCCEEDED
    assert attempts.outcome().value_or_raise() == "the value"


def test_a_dict_that_a_thread_changes_is_told(attempts: Attempts) -> None:
    def work() -> dict[int, int]:
        value = {key: key for key in range(200_000)}

        def change() -> None:
            while True:
                value[-len(value)] = 1
                time.sleep(1e-4)

        threading.Thread(target=change, daemon=True).start()
        return value

    assert attempts.submit(work).run() == wire.EXIT_USER_ERROR
    with pytest.raises(UnserializableResult, match="dict that cannot be encoded: RuntimeError") as caught:
        attempts.outcome().value_or_raise()
    assert "RuntimeError: dictionary changed" in "".join(caught.value.__notes__)


class Odd:
    """Fails when it is asked whether it is a coroutine."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __reduce__(self) -> Any:
        return str, ("odd",)


def test_an_odd_value_is_a_value(attempts: Attempts) -> None:
    assert attempts.submit(lambda: Odd()).run() == wire.EXIT_SUCCEEDED
    assert attempts.outcome().value_or_raise() == "odd"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Write a file until no byte fits on the disk any more."""
    try:
        with (folder / "filler").open("wb", buffering=0) as stream:
            while stream.write(bytes(1)):
                stream.write(bytes(4095))
    except OSError:
        return


@pytest.mark.parametrize(("backend", "where"), [("gke", "the pod"), ("local", "this machine")])
def test_a_disk_that_is_full_before_is_not_the_functions(
    attempts: Attempts, small_disk: Path, backend: str, where: str
) -> None:
    ran = attempts.folder / "ran"
    attempts.submit(appending(ran))
    here = {"KINETIC_WORK_DIR": str(small_disk / "work"), "KINETIC_BACKEND": backend}
    fill(small_disk)
    assert attempts.run(**here) == wire.EXIT_UNPUBLISHED
    assert not attempts.is_committed()
    attempts.ignored = 1
    assert attempts.run(**here, KINETIC_INFRASTRUCTURE_RETRIES="1") == wire.EXIT_NEVER_RETRY
    with pytest.raises(JobLost, match=f"the disk of {where} is full: .*/work.* cannot be written: No space"):
        attempts.outcome().value_or_raise()
    assert not ran.exists()


def test_a_result_that_fills_the_disk_is_told(attempts: Attempts, small_disk: Path) -> None:
    attempts.submit(lambda: bytes(1 << 20))
    assert attempts.run(KINETIC_WORK_DIR=str(small_disk / "work")) == wire.EXIT_USER_ERROR
    with pytest.raises(JobOutOfDisk, match="result cannot be written: OSError"):
        attempts.outcome().value_or_raise()


def test_a_disk_that_is_full_keeps_a_small_result(attempts: Attempts, small_disk: Path) -> None:
    def work() -> str:
        fill(small_disk)
        return "the value"

    attempts.submit(work)
    assert attempts.run(KINETIC_WORK_DIR=str(small_disk / "work")) == wire.EXIT_SUCCEEDED
    assert attempts.outcome().value_or_raise() == "the value"


def forked(end: str) -> str:
    if child := os.fork():
        os.waitpid(child, 0)
        if end == "survives":
            os.kill(os.getpid(), signal.SIGKILL)
        return "the parent's"
    if end == "raises":
        raise ValueError("in the child")
    return "the child's"


def test_a_forked_child_raises_for_itself(attempts: Attempts) -> None:
    assert attempts.submit(forked, "raises").run() == wire.EXIT_SUCCEEDED
    assert attempts.outcome().value_or_raise() == "the parent's"
    assert "ValueError: in the child" in attempts.log


def test_a_forked_child_leaves_no_outcome(attempts: Attempts) -> None:
    assert attempts.submit(forked, "survives").run() == wire.EXIT_USER_ERROR
    with pytest.raises(JobFailed, match="killed by SIGKILL"):
        attempts.outcome().value_or_raise()

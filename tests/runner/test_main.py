"""The runner publishes a truthful outcome however user code ends, and runs nothing it should not."""

from __future__ import annotations

import asyncio
import importlib
import os
import pickle
import platform
import signal
import sys
import threading
import time
import types
from collections.abc import Callable
from dataclasses import replace
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import cloudpickle
import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.results import loaded, writing_advice
from kinetic_core.errors import (
    JobError,
    JobFailed,
    JobMisconfigured,
    UnloadableResult,
    UnserializableResult,
    UnverifiedResult,
)
from kinetic_core.jobs.collect import read_outcome
from tests.runner.attempts import JOB, KEY, Attempts, appending


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


def test_a_plain_value_is_committed_without_pickle(attempts: Attempts) -> None:
    assert attempts.submit(lambda x: {"x": (x, b"y")}, 3).run() == wire.EXIT_SUCCEEDED
    outcome = attempts.outcome()
    assert (outcome.codec, outcome.value_or_raise()) == ("typed", {"x": (3, b"y")})
    times = outcome.times
    assert times["started"] <= times["user_started"] <= times["user_finished"] <= times["finished"]


def test_an_object_is_pickled_and_said_so(attempts: Attempts) -> None:
    attempts.submit(lambda: threading.Barrier).run()
    assert attempts.outcome().codec == "pickle"
    assert attempts.outcome().value_or_raise() is threading.Barrier


@pytest.mark.parametrize(
    ("error", "user", "told"),
    [
        (PermissionError(13, "Permission denied", "/data/out"), 1000, "not to /data/out. run_as_root=True"),
        (PermissionError(13, "Permission denied", "/data/out"), 0, ""),
        (PermissionError("not for you"), 1000, ""),
        (FileNotFoundError(2, "No such file or directory", "/data/out"), 1000, ""),
    ],
)
def test_who_may_not_write_is_told_where_to(error: OSError, user: int, told: str) -> None:
    assert told in (writing_advice(error, user) or "")
    assert bool(writing_advice(error, user)) is bool(told)


def test_a_coroutine_runs_to_completion(attempts: Attempts) -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 5

    attempts.submit(work).run()
    assert attempts.outcome().value_or_raise() == 5


class OwnError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Unloadable(Exception):
    def __init__(self, code: int, *, text: str) -> None:
        super().__init__(f"{code}: {text}")


class Stubborn:
    def __reduce__(self) -> Any:
        raise RuntimeError("no copies")

    def __repr__(self) -> str:
        return "<Stubborn 7>"


def raises(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")  # of the HTTPError, since 3.14
@pytest.mark.promise("gke: Kill, `os._exit`, segfault are observed facts")
@pytest.mark.parametrize(
    ("function", "error", "says"),
    [
        (raises(KeyError("k")), KeyError, "'k'"),
        (raises(OSError(2, "gone")), FileNotFoundError, "gone"),
        (lambda: 1 / 0, ZeroDivisionError, "division"),
        (lambda: sys.exit(3), JobFailed, r"sys.exit\(3\)"),
        (lambda: sys.exit("bad"), JobFailed, r"sys.exit\('bad'\)"),
        (raises(KeyboardInterrupt()), JobFailed, "KeyboardInterrupt"),
        (lambda: raises(Unloadable(1, text="t"))(), Unloadable, "1: t"),
        (lambda: raises(ValueError(threading.Lock()))(), ValueError, "unlocked _thread.lock"),
        (
            lambda: raises(HTTPError("http://x", 404, "no such page", Message(), None))(),
            HTTPError,
            "no such page",
        ),
        (lambda: Path("/nope/x").read_text(), FileNotFoundError, "No such file or directory: '/nope/x'"),
        (
            lambda: Stubborn(),
            UnserializableResult,
            "Stubborn that cannot be pickled: RuntimeError: no copies",
        ),
        (lambda: os._exit(0), JobFailed, "exited with code 0 before the function returned"),
        (lambda: os._exit(9), JobFailed, "exited with code 9"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), JobFailed, "killed by SIGSEGV"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), JobFailed, "killed by SIGKILL"),
    ],
)
def test_every_end_of_user_code_is_told(
    attempts: Attempts, function: Callable[[], Any], error: type[BaseException], says: str
) -> None:
    assert attempts.submit(function).run() in (wire.EXIT_USER_ERROR, wire.EXIT_NEVER_RETRY)
    with pytest.raises(error, match=says):
        attempts.outcome().value_or_raise()


def test_sys_exit_zero_is_success(attempts: Attempts) -> None:
    assert attempts.submit(lambda: sys.exit()).run() == wire.EXIT_SUCCEEDED
    assert attempts.outcome().value_or_raise() is None


def test_an_exception_keeps_type_attributes_and_traceback(attempts: Attempts) -> None:
    attempts.submit(lambda: raises(OwnError(7, "x"))()).run()
    with pytest.raises(Exception, match="7: x") as caught:
        attempts.outcome().value_or_raise()
    note = "".join(caught.value.__notes__)
    assert "Remote traceback" in note
    assert ", in work" in note
    assert "child.py" not in note


def test_an_unserialisable_value_shows_its_repr(attempts: Attempts) -> None:
    attempts.submit(lambda: Stubborn()).run()
    with pytest.raises(UnserializableResult) as caught:
        attempts.outcome().value_or_raise()
    assert "<Stubborn 7>" in "".join(caught.value.__notes__)


def test_a_value_whose_class_is_not_here_is_named(attempts: Attempts) -> None:
    class Elsewhere:
        def __reduce__(self) -> Any:
            return importlib.import_module, ("module_of_another_machine",)

    attempts.submit(lambda: Elsewhere()).run()
    place = f"gs://bucket/jobs/{attempts.outcome().job_id}/result"
    with pytest.raises(UnloadableResult) as caught:
        replace(attempts.outcome(), place=place).value_or_raise()
    said = str(caught.value)
    assert said.startswith(f"{attempts.outcome().job_id} returned a ")
    assert "Elsewhere that cannot be loaded here: No module named 'module_of_another_machine'" in said
    assert f"It lies at {place}: ask for it where its class can be imported" in said


def test_a_missing_class_inside_of_a_value_is_named() -> None:
    elsewhere = types.ModuleType("module_of_another_machine")
    sys.modules[elsewhere.__name__] = elsewhere
    try:
        exec("class Held: pass", vars(elsewhere))
        body = pickle.dumps({"a": elsewhere.Held()})
    finally:
        del sys.modules[elsewhere.__name__]
    with pytest.raises(ImportError, match=r"^module_of_another_machine\.Held: No module named 'module_of"):
        loaded(body)


def test_the_environment_is_there_before_anything_is_unpickled(attempts: Attempts) -> None:
    class Loaded:
        def __reduce__(self) -> Any:
            return os.getenv, ("COLOUR",)

    attempts.submit(lambda seen: seen, Loaded(), env={"COLOUR": "red"}).run()
    assert attempts.outcome().value_or_raise() == "red"


def test_user_code_never_sees_the_key(attempts: Attempts) -> None:
    attempts.submit(lambda: sorted(name for name in os.environ if "KEY" in name)).run()
    assert attempts.outcome().value_or_raise() == []


@pytest.mark.attack
def test_a_payload_that_was_changed_is_not_loaded(attempts: Attempts) -> None:
    name = object_names.payload(JOB, attempts.submit(lambda: 1).payload_sha256)
    other = attempts.store.read(name).replace(b"function_name", b"function_Name")
    attempts.store.delete(name)
    attempts.store.create_if_absent(name, other)
    assert attempts.run() == wire.EXIT_NEVER_RETRY
    with pytest.raises(JobMisconfigured, match="not the one this job was submitted with"):
        attempts.outcome().value_or_raise()


def test_a_missing_module_is_named(attempts: Attempts) -> None:
    class Absent:
        def __reduce__(self) -> Any:
            return __import__, ("no_such_module",)

    assert attempts.submit(lambda x: x, Absent()).run() == wire.EXIT_NEVER_RETRY
    with pytest.raises(JobMisconfigured, match="'no_such_module' is neither in the shipped project"):
        attempts.outcome().value_or_raise()


@pytest.mark.parametrize("there", ["0.1", cloudpickle.__version__, None])
def test_another_cloudpickle_is_named(attempts: Attempts, there: str | None) -> None:
    class Fails:
        def __reduce__(self) -> Any:
            return int, ("no number",)

    client = {"python": platform.python_version(), **({} if there is None else {"cloudpickle": there})}
    attempts.submit(lambda x: x, Fails(), client=client).run()
    with pytest.raises(JobMisconfigured, match=r"unpickle failed: .*no number") as caught:
        attempts.outcome().value_or_raise()
    said = f"submitted with cloudpickle 0.1, and its image has {cloudpickle.__version__}: use the same"
    assert (said in str(caught.value)) is (there == "0.1")


def test_another_python_is_refused_before_anything_is_loaded(attempts: Attempts, tmp_path: Path) -> None:
    code = attempts.submit(appending(tmp_path / "ran"), client={"python": "3.9.1"}).run()
    assert code == wire.EXIT_NEVER_RETRY
    with pytest.raises(JobMisconfigured, match=r"submitted from Python 3\.9, and its image has 3\.\d+\. Use"):
        attempts.outcome().value_or_raise()
    assert not (tmp_path / "ran").exists()


def test_threads_left_behind_do_not_hold_the_job(attempts: Attempts) -> None:
    def work() -> int:
        threading.Thread(target=time.sleep, args=(600,), name="left-behind").start()
        return 1

    assert attempts.submit(work).run() == wire.EXIT_SUCCEEDED
    assert "left-behind" in attempts.log


def test_our_own_threads_are_not_told_of(attempts: Attempts) -> None:
    def work() -> int:
        threading.Thread(target=time.sleep, args=(600,), name="kinetic-cleanup-grp-within").start()
        return 1

    assert attempts.submit(work).run() == wire.EXIT_SUCCEEDED
    assert "still ran" not in attempts.log


def test_what_it_prints_is_kept_in_the_store(attempts: Attempts) -> None:
    attempts.submit(lambda: print("x" * 600_000, "the end")).run()
    prefix = f"jobs/{JOB}/attempts/0/log/"
    kept = b"".join(attempts.store.read(info.name) for info in attempts.store.list(prefix))
    assert kept.endswith(b"x the end\n")
    assert len(kept) > 600_000


def test_a_store_that_vanishes_is_an_infrastructure_failure(attempts: Attempts) -> None:
    root = str(attempts.store.root)

    def work() -> None:
        import shutil

        shutil.rmtree(root)

    assert attempts.submit(work).run() == wire.EXIT_UNPUBLISHED
    assert not Path(root).exists()
    assert "cannot be published" in attempts.log


def test_a_forged_outcome_is_refused(attempts: Attempts) -> None:
    frame = wire.encode_frame(
        {"protocol": wire.PROTOCOL, "job_id": JOB, "state": "succeeded", "codec": "pickle"},
        {"body": b"cos\nsystem\n(S'touch /tmp/owned'\ntR."},
        b"0" * 32,
    )
    with pytest.raises(UnverifiedResult, match="without the job's key"):
        read_outcome(frame, KEY, job_id=JOB)
    with pytest.raises(UnverifiedResult, match="cannot be verified"):
        read_outcome(frame, None, job_id=JOB).value_or_raise()
    with pytest.raises(UnverifiedResult, match="belongs to"):
        read_outcome(frame, b"0" * 32, job_id="job-ffffffffffffffff")
    assert issubclass(JobFailed, JobError)

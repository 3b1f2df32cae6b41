"""Attempts that are repeated, interrupted, cancelled or come too late."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.wire import FailureClass
from tests.conftest import wait_for
from tests.runner.attempts import JOB, KEY, Attempts, appending


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


def test_only_the_last_failure_is_committed(attempts: Attempts) -> None:
    attempts.retries = 1
    assert attempts.submit(lambda: 1 / 0).run() == wire.EXIT_USER_ERROR
    assert not attempts.is_committed()
    attempts.failed = 1
    assert attempts.run() == wire.EXIT_USER_ERROR
    assert attempts.outcome().attempt == 1
    assert attempts.store.find(object_names.attempt_outcome(JOB, 0)) is not None


class Strange:
    """A value whose text cannot be encoded, and which cannot be pickled."""

    def __repr__(self) -> str:
        return "caf\udce9"

    def __reduce__(self) -> str:
        raise ValueError("cannot pickle caf\udce9")


def test_an_outcome_has_only_text_that_can_be_encoded(attempts: Attempts) -> None:
    attempts.submit(Strange).run()
    outcome = attempts.outcome()
    assert outcome.failure is not None
    assert outcome.failure.message.endswith(r"cannot pickle caf\udce9")
    assert outcome.result_repr == r"caf\udce9"


def test_a_finished_job_is_not_run_again(attempts: Attempts) -> None:
    marker = attempts.folder / "runs"
    attempts.submit(appending(marker)).run()
    attempts.failed = 1
    assert attempts.run() == wire.EXIT_SUCCEEDED
    assert marker.read_text() == "x"


@pytest.mark.attack
def test_a_cancelled_job_does_not_start(attempts: Attempts) -> None:
    attempts.submit(lambda: 1).store.create_if_absent(object_names.cancel(JOB), b"{}")
    assert attempts.run() == wire.EXIT_NEVER_RETRY
    failure = attempts.outcome().failure
    assert failure is not None
    assert failure.failure_class == wire.FailureClass.CANCELLED


def test_sigterm_reaches_a_process_that_has_just_been_forked(attempts: Attempts) -> None:
    """Else the function would run to the end of the grace, and be killed with nothing saved."""
    forked = attempts.folder / "forked"
    changes = {"SLOW_FORK": str(forked), "KINETIC_GRACE_SECONDS": "60"}
    process = attempts.submit(time.sleep, 60).start(**changes)
    wait_for(forked.exists)
    process.terminate()
    assert process.wait(timeout=30) == wire.EXIT_INTERRUPTED


@pytest.mark.promise("batches: SIGTERM reaches user code")
@pytest.mark.parametrize("handled", [True, False])
def test_sigterm_reaches_user_code(attempts: Attempts, handled: bool) -> None:
    started = attempts.folder / "started"

    def work() -> str:
        try:
            started.write_text("")
            time.sleep(60)
        finally:
            (started.parent / "saved").write_text("checkpoint")
        return "never"

    def patient() -> str:
        told: list[int] = []
        signal.signal(signal.SIGTERM, lambda *_: told.append(1))
        started.write_text("")
        while not told:
            time.sleep(0.01)
        return "saved in time"

    process = attempts.submit(patient if handled else work).start(KINETIC_GRACE_SECONDS="60")
    wait_for(started.exists)
    process.send_signal(signal.SIGTERM)
    code = process.wait(timeout=90)
    if handled:
        assert (code, attempts.outcome().value_or_raise()) == (wire.EXIT_SUCCEEDED, "saved in time")
    else:
        assert code == 143
        assert (attempts.folder / "saved").read_text() == "checkpoint"
        assert not attempts.is_committed()  # an interrupted attempt is not the function's fault


@pytest.mark.promise("batches: Documented hook and `KINETIC_PREEMPTED` file")
@pytest.mark.parametrize("by", ["handler", "looking"])
def test_the_file_of_preemption_is_there_before_the_signal(attempts: Attempts, by: str) -> None:
    started = attempts.folder / "started"

    def work() -> list[bool]:
        notice = Path(os.environ["KINETIC_PREEMPTED"])
        seen = [notice.exists()]
        handler = (lambda *_: seen.append(notice.exists())) if by == "handler" else signal.SIG_IGN
        signal.signal(signal.SIGTERM, handler)
        started.touch()
        while len(seen) == 1:
            time.sleep(0.01)
            if by == "looking" and notice.exists():
                seen.append(True)
        return seen

    process = attempts.submit(work).start(KINETIC_GRACE_SECONDS="60")
    wait_for(started.exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=90) == wire.EXIT_SUCCEEDED
    assert attempts.outcome().value_or_raise() == [False, True]


def test_a_job_that_is_out_of_time_finds_no_such_file(attempts: Attempts) -> None:
    saved = attempts.folder / "saved"

    def work() -> None:
        try:
            time.sleep(60)
        finally:
            saved.write_text(str(Path(os.environ["KINETIC_PREEMPTED"]).exists()))

    attempts.submit(work).run(KINETIC_TIMEOUT="1")
    assert saved.read_text() == "False"


@pytest.mark.promise("batches: Grace honoured")
def test_user_code_that_ignores_sigterm_is_killed_in_time(attempts: Attempts) -> None:
    started = attempts.folder / "started"

    def stubborn() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        started.write_text("")
        time.sleep(60)

    process = attempts.submit(stubborn).start()
    wait_for(started.exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=90) == 143
    header, _ = wire.decode_frame(attempts.store.read(object_names.attempt_outcome(JOB, 0)), KEY)
    assert header["failure"]["failure_class"] == FailureClass.PREEMPTED  # type: ignore[index]


@pytest.mark.promise("gke: The outcome is committed once, by the attempt that owns it")
@pytest.mark.parametrize("step", range(13))
def test_killed_at_any_step_the_job_still_ends_once(attempts: Attempts, step: int) -> None:
    """After SIGKILL at each use of the store the next attempt ends the job, and the function ran once or
    twice but never after the outcome was committed."""
    runs = attempts.folder / "runs"
    attempts.submit(appending(runs))
    first = attempts.start(kill_at=step).wait(timeout=60)
    committed = attempts.is_committed()
    ran = runs.read_text() if runs.exists() else ""
    if first != 0:
        attempts.failed += 1
        attempts.retries = 1
        assert attempts.run() == wire.EXIT_SUCCEEDED
    assert attempts.outcome().value_or_raise() == "value"
    if committed:
        assert runs.read_text() == ran


def test_a_job_that_was_interrupted_too_often_is_not_started(attempts: Attempts, tmp_path: Path) -> None:
    attempts.ignored = 6
    code = attempts.submit(appending(tmp_path / "ran")).run()
    assert code == wire.EXIT_NEVER_RETRY
    failure = attempts.outcome().failure
    assert failure is not None
    assert failure.failure_class == FailureClass.PREEMPTED
    assert "interrupted 6 times" in failure.message
    assert not (tmp_path / "ran").exists()

"""A job ends when its attempts together have cost its budget, which waiting between them does not."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.attempt import BadEnvironment, Job, take_job
from kinetic_core._runner.deadline import Spending
from kinetic_core._runner.store import DirectoryStore
from kinetic_core.errors import JobBudgetExceeded
from tests.conftest import wait_for
from tests.runner.attempts import JOB, Attempts

SECOND = "0.001 3.6 EUR"
"""An euro buys 1,000 seconds."""


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


def rest(began: str) -> None:
    import time
    from pathlib import Path

    Path(began).touch()
    time.sleep(600)


def spent(attempts: Attempts, attempt: int = 0, host: int = 0) -> float:
    told = json.loads(attempts.store.read(object_names.spending(JOB, attempt, host)))
    return float(told["seconds"])


def test_it_is_ended_and_says_what_it_has_cost(attempts: Attempts, tmp_path: Path) -> None:
    attempts.submit(rest, str(tmp_path / "began")).retries = 3
    assert attempts.run(KINETIC_BUDGET=SECOND, KINETIC_ACCELERATOR="cpu") == wire.EXIT_NEVER_RETRY
    said = r"it has cost 0\.00\d+ EUR of budget=0\.001: \d s of cpu at 3\.6 EUR an hour\. Submit it with"
    with pytest.raises(JobBudgetExceeded, match=said):
        attempts.outcome().value_or_raise()
    assert (tmp_path / "began").exists()


def test_a_value_in_time_is_a_value(attempts: Attempts) -> None:
    assert attempts.submit(abs, -7).run(KINETIC_BUDGET="1 3.6 EUR") == wire.EXIT_SUCCEEDED
    assert attempts.outcome().value_or_raise() == 7


def test_what_earlier_attempts_have_cost_is_spent(attempts: Attempts, tmp_path: Path) -> None:
    attempts.submit(rest, str(tmp_path / "began"))
    attempts.note(object_names.spending(JOB, 0, 0), seconds=400)
    attempts.note(object_names.spending(JOB, 2, 0), seconds=599)
    attempts.failed, attempts.ignored, attempts.retries = 1, 2, 9
    assert attempts.run(KINETIC_BUDGET="1 3.6 EUR") == wire.EXIT_NEVER_RETRY
    with pytest.raises(JobBudgetExceeded, match=r"1[.\d]* EUR of budget=1: 1000 s .*, in 4 attempts"):
        attempts.outcome().value_or_raise()
    assert (tmp_path / "began").exists()


def test_with_nothing_left_no_user_code_starts(attempts: Attempts, tmp_path: Path) -> None:
    attempts.submit(rest, str(tmp_path / "began"))
    attempts.note(object_names.spending(JOB, 0, 0), seconds=1000)
    attempts.ignored = 1
    assert attempts.run(KINETIC_BUDGET="1 3.6 EUR") == wire.EXIT_NEVER_RETRY
    with pytest.raises(JobBudgetExceeded):
        attempts.outcome().value_or_raise()
    assert not (tmp_path / "began").exists()


def test_a_preempted_attempt_notes_what_it_has_cost(attempts: Attempts, tmp_path: Path) -> None:
    started = time.time()
    process = attempts.submit(rest, str(tmp_path / "began")).start(KINETIC_BUDGET="1 3.6 EUR")
    wait_for((tmp_path / "began").exists)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(90) == wire.EXIT_INTERRUPTED
    assert 0 < spent(attempts) < time.time() - started


def test_the_earlier_of_time_and_budget_ends_it(attempts: Attempts, tmp_path: Path) -> None:
    attempts.submit(rest, str(tmp_path / "began"))
    assert attempts.run(KINETIC_BUDGET="1 3.6 EUR", KINETIC_TIMEOUT="1") == wire.EXIT_NEVER_RETRY
    failure = attempts.outcome().failure
    assert failure is not None
    assert failure.failure_class == wire.FailureClass.DEADLINE


def test_a_host_of_a_slice_that_waits_for_the_others_spends_too(attempts: Attempts, tmp_path: Path) -> None:
    attempts.submit(rest, str(tmp_path / "began"))
    host = attempts.start(KINETIC_HOST_COUNT="2", KINETIC_HOST_INDEX="1", KINETIC_BUDGET=SECOND)
    assert host.wait(90) == wire.EXIT_NEVER_RETRY
    with pytest.raises(JobBudgetExceeded):
        attempts.outcome().value_or_raise()
    assert not (tmp_path / "began").exists()


def job(attempts: Attempts, budget: str, **changes: str) -> Job:
    return take_job(attempts.environment(KINETIC_BUDGET=budget, **changes))


def test_an_attempt_that_may_die_silently_notes_it(attempts: Attempts) -> None:
    attempts.submit(abs, -7)
    now = [5000.0]
    store = DirectoryStore("", str(tmp := attempts.folder / "store"))
    assert tmp.is_dir()
    for budget, pause in (("1 3.6 EUR", 30), ("0.1 3.6 EUR", 5), (SECOND, 1)):
        spending = Spending(job(attempts, budget, KINETIC_HOST_INDEX="3"), store, now[0], lambda: now[0])
        start = now[0]
        for elapsed in (pause, 2 * pause):
            now[0] = start + elapsed
            spending.tick()
            assert spent(attempts, host=3) == elapsed
            now[0] += pause / 2
            spending.tick()
            assert spent(attempts, host=3) == elapsed


def test_what_costs_nothing_is_never_over(attempts: Attempts) -> None:
    attempts.submit(abs, -7)
    assert Spending(job(attempts, "1 0 EUR"), DirectoryStore("", ""), 0.0).over_at == float("inf")


def test_a_currency_may_have_spaces_and_a_budget_must_be_whole(attempts: Attempts) -> None:
    attempts.submit(abs, -7)
    budget = job(attempts, "1.5 3.6 US dollars").budget
    assert budget is not None
    assert (budget.amount, budget.hourly, budget.currency) == (1.5, 3.6, "US dollars")
    with pytest.raises(BadEnvironment, match="wrongly"):
        job(attempts, "1.5")

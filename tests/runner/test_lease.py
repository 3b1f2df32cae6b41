"""An attempt with a lease goes on exactly as long as it can renew it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from kinetic_core._runner import object_names, wire
from tests.conftest import is_alive, wait_for
from tests.runner.attempts import JOB, Attempts


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


def renewals(attempts: Attempts) -> int:
    return int(json.loads(attempts.store.read(object_names.lease(JOB, 0)))["renewed"])


def test_a_lease_is_renewed_while_user_code_runs(attempts: Attempts) -> None:
    go = attempts.folder / "go"

    def work() -> str:
        while not go.exists():
            time.sleep(0.01)
        return "done"

    process = attempts.submit(work).start(KINETIC_LEASE_SECONDS="0.2")
    wait_for(lambda: attempts.store.find(object_names.lease(JOB, 0)) is not None and renewals(attempts) > 5)
    go.write_text("")
    assert process.wait(timeout=90) == wire.EXIT_SUCCEEDED
    assert attempts.outcome().value_or_raise() == "done"


def test_without_a_store_user_code_is_killed_in_time(attempts: Attempts) -> None:
    user_code = attempts.folder / "pid"

    def work() -> None:
        user_code.write_text(str(os.getpid()))
        time.sleep(60)

    process = attempts.submit(work).start(KINETIC_LEASE_SECONDS="0.5")
    wait_for(lambda: user_code.exists() and user_code.read_text() != "")
    root = Path(attempts.store.uri.removeprefix("file://"))
    root.rename(root.with_name("out-of-reach"))
    assert process.wait(timeout=90) == wire.EXIT_INTERRUPTED
    assert "the lease has run out" in attempts.log
    wait_for(lambda: not is_alive(int(user_code.read_text())))


@pytest.mark.attack
def test_it_survives_a_request_that_hangs(attempts: Attempts) -> None:
    attempts.submit(time.sleep, 2)
    assert attempts.run(KINETIC_LEASE_SECONDS="1", HANGING="yes") == wire.EXIT_SUCCEEDED
    assert renewals(attempts) > 4


def test_nothing_runs_that_could_not_take_its_lease(attempts: Attempts) -> None:
    started = attempts.folder / "started"
    attempts.submit(started.write_text, "")
    blocker = Path(attempts.store.uri.removeprefix("file://")) / object_names.lease(JOB, 0)
    blocker.mkdir(parents=True)  # no file can be put where a directory is
    assert attempts.run(KINETIC_LEASE_SECONDS="60") == wire.EXIT_UNPUBLISHED
    assert not started.exists()

"""Of the pods that a job may get on several accelerators, those of one run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.notes import encode_note
from kinetic_core.errors import JobMisconfigured
from tests.runner.attempts import JOB, Attempts


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path, retries=1)


def test_a_pod_takes_its_accelerator_for_all_that_follow(attempts: Attempts) -> None:
    marker = attempts.folder / "ran"

    def work() -> str:
        if not marker.exists():
            marker.write_text("")
            raise ValueError("the first time")
        return "done"

    attempts.submit(work)
    assert attempts.run(KINETIC_CHOICE="1") == wire.EXIT_USER_ERROR
    taken = json.loads(attempts.store.read(object_names.choice(JOB, 1)))
    assert (taken["decision"], taken["pod_uid"]) == ("started", "uid-0")
    attempts.failed = 1
    assert attempts.run(KINETIC_CHOICE="1") == wire.EXIT_SUCCEEDED
    assert attempts.outcome().value_or_raise() == "done"


def test_one_that_was_passed_over_runs_nothing(attempts: Attempts) -> None:
    marker = attempts.folder / "ran"
    attempts.submit(marker.write_text, "")
    attempts.note(object_names.choice(JOB, 0), decision="passed")
    assert attempts.run(KINETIC_CHOICE="0") == wire.EXIT_FENCED
    assert not marker.exists()
    assert not attempts.is_committed()
    assert attempts.store.find(object_names.claim(JOB, 0)) is None
    assert "has gone to another accelerator" in attempts.log


@pytest.mark.attack
@pytest.mark.parametrize("decision", ["passed", "started"])
def test_a_planted_choice_is_named_and_not_believed(attempts: Attempts, decision: str) -> None:
    """Whether the job has gone on is not known then, and on two accelerators it must not run."""
    marker, name = attempts.folder / "ran", object_names.choice(JOB, 0)
    attempts.submit(marker.write_text, "")
    attempts.store.create_if_absent(name, encode_note(b"another", name, {"decision": decision}))
    assert attempts.run(KINETIC_CHOICE="0") == wire.EXIT_NEVER_RETRY
    assert not marker.exists()
    with pytest.raises(JobMisconfigured, match="choices/0 is not what this job has stored"):
        attempts.outcome().value_or_raise()


def test_each_installs_what_its_own_image_lacks(attempts: Attempts) -> None:
    wanted = {"lines": ["no-such-package==1"], "constraints": [], "options": ["--no-index"]}
    attempts.submit(lambda: 7, dependencies=[None, wanted])
    assert attempts.run(KINETIC_CHOICE="0") == wire.EXIT_SUCCEEDED
    assert attempts.outcome().value_or_raise() == 7

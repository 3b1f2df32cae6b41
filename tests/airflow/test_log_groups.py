"""Attempts of a job in Airflow's own page of the task's log, as a browser shows it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import chromium
import pytest

from tests.conftest import needs_program

pytestmark = pytest.mark.airflow
PICTURES = os.environ.get("KINETIC_TEST_PICTURES")
"""A directory for screenshots, to be looked at."""
TEXT = "(document.body?.innerText ?? '')"  # a page that has just been opened has no body
OPEN = "[...document.querySelectorAll('span')].find(each => each.innerText.includes({!r})).click()"


def folder(cases: Any) -> Path:
    """Where the job and its test tell each other how far they are."""
    return Path(cases.airflow.home, "attempts")


def followed_late(cases: Any) -> None:
    """Let the first attempt end, and the second one print, while no triggerer lives."""
    folder(cases).mkdir()
    triggerer = cases.airflow.processes.pop("triggerer")
    triggerer.kill()
    triggerer.wait(90)
    try:
        cases.start("attempts")
        cases.reach("attempts", "talks", lambda found: found["state"] == "deferred", "to be deferred")
        (folder(cases) / "begin").touch()
        cases.airflow.until((folder(cases) / "said").exists, 300, "the second attempt to print")
    finally:
        cases.airflow.start_component("triggerer")


@pytest.mark.promise("scale: Log groups per attempt")
def test_the_failed_attempt_is_folded_the_running_one_seen(cases: Any, tmp_path: Path) -> None:
    """A group is folded also while its lines come: so none of ours has lines of an attempt that runs."""
    needs_program(chromium.program(), "no Chromium (Debian: apt-get install chromium): nobody looked at it")
    followed_late(cases)
    instance = cases.reach(
        "attempts",
        "talks",
        lambda found: found if "a line of the step" in cases.log("attempts", "talks") else None,
        "to show the running attempt",
    )
    assert instance["state"] == "deferred"
    (record,) = cases.values("attempts", "talks", "kinetic_job")
    titles = [f"attempt {number} of {record['reference']['job_id']}" for number in (1, 2)]
    with chromium.tab(tmp_path) as tab:
        tab.call("Network.setCookie", name="_token", value=cases.api.token, url=cases.api.url)
        tab.open(cases.api.log_url(instance))
        tab.until(f"{TEXT}.includes('a line of the running attempt')")
        if PICTURES:
            tab.picture(Path(PICTURES, "log_groups.png"))
        seen = tab.ask(TEXT)
        assert titles[0] in seen
        assert titles[1] in seen
        assert "a line of the failed attempt" not in seen
        assert "a step that goes on" in seen
        assert "a line of the step" not in seen, "a group that goes on is folded, too"
        tab.ask(OPEN.format(titles[0]))
        tab.until(f"{TEXT}.includes('a line of the failed attempt')")
        (folder(cases) / "go").touch()
        assert cases.end("attempts") == "success"
        tab.open(cases.api.log_url(instance))
        tab.until(f"{TEXT}.includes('{record['reference']['job_id']} is SUCCEEDED')")
    log = cases.log("attempts", "talks")
    shown = [log.index(each) for each in (f"::group::{titles[0]}", "a line of the failed", "::endgroup::")]
    for line in ("a line of the failed attempt", "a line of the running attempt", "a line of the step"):
        assert log.count(line) == 1
    assert shown[0] < shown[1] < log.index(f"\n{titles[1]}\n")

"""The gauge of a container's memory, on the kernel this runs on, and the note it leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kinetic_core._runner.memory import MemoryGauge, noted, ran_out


def test_the_note_tells_what_was_seen(tmp_path: Path) -> None:
    note = tmp_path / "termination-log"
    note.touch()
    gauge = MemoryGauge(str(note))
    gauge.sample()
    if not gauge.peak:
        pytest.skip("this kernel shows no memory cgroup")
    assert noted(note.read_text()) == (gauge.limit, gauge.peak)
    gauge.clear_note()
    assert note.read_text() == ""


def test_a_place_that_is_not_there_is_no_trouble(tmp_path: Path) -> None:
    gauge = MemoryGauge(str(tmp_path / "nowhere"))
    gauge.sample()
    gauge.clear_note()
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("message", ["", "kinetic: cannot fetch the runner", "[]", '{"memory_limit": 1}'])
def test_a_message_that_is_no_note_tells_nothing(message: str) -> None:
    assert noted(message) == (None, None)


def test_the_sentence_says_what_is_known() -> None:
    assert ran_out("it", 128 << 20, 127 << 20).count("MiB") == 2
    assert "1.5 GiB" in ran_out("it", 3 << 29, None)
    assert (
        ran_out("it", None, None)
        == "it was killed because the job's memory ran out. Ask for more with memory="
    )
    assert noted(json.dumps({"memory_limit": None, "memory_peak": 5})) == (None, 5)

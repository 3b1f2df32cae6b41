"""A log of 250 MiB that a real triggerer follows: each line is shown once, and memory stays small."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.airflow, pytest.mark.attack, pytest.mark.slow]
LINES = 250 << 10
FOLLOWED = 3000
"""Lines that the triggerer shows before the job ends; it may show 200 a second."""
MEMORY = 128 << 20
"""Half of the log. What a triggerer loads with its first trigger is a part of it, too."""


def peaks(pid: int) -> dict[int, int]:
    """The most memory that a process and its descendants have held, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = {pid: int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) << 10}
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            found |= peaks(int(child))
    return found


def shown(cases: Any) -> tuple[Counter[int], str]:
    """How often each line is in the task's log, as Airflow keeps it, and the rest of that log."""
    files = Path(cases.airflow.home, "logs").glob("dag_id=long_log/**/*.log*")
    text = "".join(path.read_text() for path in sorted(files))
    return Counter(map(int, re.findall(r"line (\d{6}) xxx", text))), re.sub("x{100,}", "", text)


def test_a_long_log_is_followed_in_small_memory_and_shown_once(cases: Any) -> None:
    triggerer = cases.airflow.processes["triggerer"].pid
    before = peaks(triggerer)
    cases.start("long_log")
    cases.airflow.until(lambda: len(shown(cases)[0]) >= FOLLOWED, 300, "lines in the task's log")
    kept = Path(cases.airflow.home, "kinetic")
    cases.airflow.until(
        lambda: sum(file.stat().st_size for file in kept.rglob("*-0.log")) > LINES << 10,
        300,
        "all to be printed",
    )
    followed = len(shown(cases)[0])
    cases.airflow.until(lambda: len(shown(cases)[0]) >= followed + FOLLOWED, 300, "more lines")
    after = peaks(triggerer)
    Path(cases.airflow.home, "long-log-ends").touch()
    assert cases.end("long_log") == "success"
    lines, rest = shown(cases)
    assert {number for number, times in lines.items() if times > 1} == set()
    assert {0, 1, 2, LINES - 1} < set(lines)
    (left_out,) = re.findall(r"(\d+) lines left out here", rest)
    assert len(lines) + int(left_out) == LINES
    grown = {pid: (peak - before.get(pid, 0)) >> 20 for pid, peak in after.items()}
    assert max(grown.values()) < MEMORY >> 20, f"MiB by process: {grown}"

"""However a job prints, its lines are shown once, in bounded memory and linear time."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from airflow_provider.task_logs import Cursor, LogTail
from kinetic_core._runner.lines import LONGEST, LineBuffer
from tests.kubernetes.manifests import reference

pytestmark = pytest.mark.attack

JOB = reference(accelerator="cpu")


class Container:
    """The log of one container, which grows."""

    def __init__(self, text: bytes = b"") -> None:
        self.text = text
        self.read = 0

    def log(
        self, _namespace: str, _job_id: str, attempt: int, offset: int, host: int = 0, size: int = -1
    ) -> bytes | None:
        if attempt or host:
            return None
        found = self.text[offset:] if size < 0 else self.text[offset : offset + size]
        self.read += len(found)
        return found


def texts(*chunks: bytes) -> list[str]:
    lines = LineBuffer()
    found = [line for chunk in chunks for line in lines.add(chunk)]
    assert sum(line.size for line in found) + lines.size == sum(map(len, chunks))
    return [line.text for line in found] + ([lines.end().text] if lines.size else [])


def test_lines_are_cut_wherever_chunks_are() -> None:
    text = b"one\r\ntwo\n\n10%\r20%\r30%\r\nab\rc\n" + "\u00e9".encode() * 3000 + b"\nend\r"
    expected = ["one", "two", "", "30%", "c", "\u00e9" * 3000, "end"]
    assert texts(text) == expected
    for step in (1, 2, 3, 7, 1000):
        assert texts(*(text[start : start + step] for start in range(0, len(text), step))) == expected


def test_of_a_long_line_the_beginning_and_the_length_are_shown() -> None:
    (text,) = texts(*[b"x" * 100_000] * 100, b"\n")
    assert text == "x" * LONGEST + "... (10000000 bytes)"


def test_a_progress_bar_is_shown_once() -> None:
    """It was shown again at each look: the offset counted no piece that ended in a carriage return."""
    container: Any = Container(b"start\n")
    tail, seen = LogTail(container, JOB), []
    for percent in range(100):
        container.text += b"%d%%\r" % percent
        seen += tail.live(50)
        tail = LogTail(container, JOB, Cursor.from_list(tail.cursor.to_list()))
    container.text += b"\ndone\n"
    seen += tail.live(50)
    assert seen == ["start", "99%", "done"]
    assert tail.live(50) == tail.rest(0) == []


def test_of_a_line_without_end_the_beginning_is_shown_once() -> None:
    container: Any = Container(b"first\n")
    tail, seen = LogTail(container, JOB), []
    for _ in range(40):
        container.text += b"x" * 100_000
        seen += tail.live(50)
        tail = LogTail(container, JOB, Cursor.from_list(tail.cursor.to_list()))
    assert [line[:6] for line in seen] == ["first", "xxxxxx"]
    container.text += b"\nlast\n"
    assert [*tail.live(50), *tail.rest(0)] == ["last"]


def test_the_rest_of_a_line_of_which_the_beginning_was_shown() -> None:
    container: Any = Container(b"x" * 1_000_000)
    tail = LogTail(container, JOB)
    assert len(tail.live(50)) == 1
    container.text += b"\nlast"
    assert LogTail(container, JOB, Cursor.from_list(tail.cursor.to_list())).rest(0) == ["last"]


def test_a_progress_bar_without_end_shows_where_it_is() -> None:
    container: Any = Container(b"".join(b"%07d%%\r" % number for number in range(100_000)))
    seen = LogTail(container, JOB).live(50)
    assert len(seen) == 3
    assert seen == sorted(seen)


def test_a_log_is_read_once_however_few_lines_are_shown() -> None:
    container: Any = Container(b"a line of thirty characters ..\n" * 50_000)
    tail, seen = LogTail(container, JOB), 0
    while lines := tail.live(50):
        seen += len(lines)
    assert seen == 50_000
    assert container.read <= len(container.text) * 1.1


LARGE = """
import resource, sys, time
from pathlib import Path
from airflow_provider.task_logs import LogTail
from kinetic_core.jobs.logs import last_lines
from tests.kubernetes.manifests import reference

lines = {"lines": b"0123456789" * 12 + b"\\n", "one line": b"x" * 128, "bar": b"%d\\r" * 40}
piece = lines[sys.argv[1]] * 8192
count = int(sys.argv[2]) // len(piece)

class Container:
    def log(self, _namespace, _job_id, attempt, offset, host=0, size=-1):
        if attempt or offset >= count * len(piece):
            return b""
        start = offset % len(piece)
        found = piece[start:]
        return found if size < 0 else found[:size]

before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.process_time()
last_lines(Container(), reference(accelerator="cpu"), 0)
shown = LogTail(Container(), reference(accelerator="cpu")).rest(0, 5000)
print(len(shown), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, time.process_time() - began)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lines", "one line", "bar"])
def test_a_gigabyte_of_log_takes_little_memory_and_time(kind: str) -> None:
    code = [sys.executable, "-c", LARGE, kind, str(1 << 30)]
    done = subprocess.run(code, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shown, kilobytes, seconds = map(float, done.stdout.split())
    assert shown == (5001 if kind == "lines" else 1)
    assert kilobytes < 64 << 10
    assert seconds < 60

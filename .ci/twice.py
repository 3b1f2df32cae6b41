"""Run tests, and what failed once more by itself; the last line names all that needed its second run.

    python .ci/twice.py ARGUMENTS OF PYTEST [-- ARGUMENTS OF THE NEXT RUN ...]

A busy machine may take longer than a test waits, and a defect fails again. The line is also added to the file
that `SECOND_RUNS` names. As pytest's plugin `twice`, this notes which tests fail.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

_NOTES = "TWICE_FAILED"
_FAILED = 1
"""pytest's exit code for tests that failed; another is a run that was broken off."""


def pytest_runtest_logreport(report: Any) -> None:
    """Note a test that failed; with workers, only where all of them report to."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(os.environ[_NOTES]).open("a", encoding="utf-8") as notes:
            notes.write(f"{report.nodeid}\n")


def main(arguments: Sequence[str]) -> int:
    """pytest's exit code of the first run that failed twice, 0 if none did."""
    again: list[str] = []
    code = 0
    for run in _runs(arguments):
        code, failed = _tested(run)
        if code == _FAILED and failed:
            print("== again, by themselves:", flush=True)
            again += failed
            code, _ = _tested([*failed, *(["-n", "0"] if "-n" in run else [])])
        if code:
            break
    names = (
        f"SECOND RUN NEEDED BY {len(again)}: {' '.join(again)}" if again else "no test needed a second run"
    )
    print(f"== {names}", flush=True)
    if again and (place := os.environ.get("SECOND_RUNS")):
        with Path(place).open("a", encoding="utf-8") as lines:
            lines.write(f"{names}\n")
    return code


def _runs(arguments: Sequence[str]) -> Iterator[list[str]]:
    run: list[str] = []
    for word in arguments:
        if word == "--":
            yield run
            run = []
        else:
            run.append(word)
    yield run


def _tested(arguments: Sequence[str]) -> tuple[int, list[str]]:
    """pytest's exit code, and the tests that failed, each once and in order."""
    with TemporaryDirectory() as folder:
        notes = Path(folder, "failed")
        here = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "twice", *arguments],
            env={**os.environ, "PYTHONPATH": here, _NOTES: str(notes)},
            check=False,
        )
        failed = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    return done.returncode, list(dict.fromkeys(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

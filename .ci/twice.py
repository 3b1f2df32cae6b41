"""Run tests, and what failed once more by itself; the last line names all that needed its second run.

    python .ci/twice.py ARGUMENTS OF PYTEST [-- OF THE NEXT RUN ...] [+ OF A RUN BESIDE THAT ...]

A busy machine may take longer than a test waits, and a defect fails again. The line is also added to the file
that `SECOND_RUNS` names. As pytest's plugin `twice`, this notes which tests fail; and which pass, in the file
that `TESTS_PASSED` names, if there is one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

_NOTES, _PASSED = "TWICE_FAILED", "TESTS_PASSED"
_FAILED = 1
"""pytest's exit code for tests that failed; another is a run that was broken off."""
_FEW = 10
"""More tests than these do not fail for a machine that is busy."""


_unpassed: set[str] = set()
"""Tests that failed or were skipped."""


def pytest_runtest_logreport(report: Any) -> None:
    """Note a test that failed, and one that passed; with workers, only where all of them report to."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    if report.failed:
        _note(os.environ[_NOTES], report.nodeid)
    if not report.passed:
        _unpassed.add(report.nodeid)
    elif report.when == "teardown" and report.nodeid not in _unpassed and (place := os.environ.get(_PASSED)):
        _note(place, report.nodeid)


def _note(place: str, line: str) -> None:
    with Path(place).open("a", encoding="utf-8") as notes:
        notes.write(f"{line}\n")


def main(arguments: Sequence[str]) -> int:
    """pytest's exit code of the first run that failed twice, 0 if none did."""
    again: list[str] = []
    code = 0
    for beside in _cut(arguments, "--"):
        runs = list(_cut(beside, "+"))
        with ThreadPoolExecutor(len(runs)) as pool:
            tested = []
            for run in pool.map(partial(_tested, kept=len(runs) > 1), runs):
                sys.stdout.write(run.output)
                sys.stdout.flush()
                tested.append(run)
        code = max(run.code for run in tested)
        failed = [test for run in tested for test in run.failed]
        if code == _FAILED and 0 < len(failed) <= _FEW:
            print("== again, by themselves:", flush=True)
            again += failed
            again_alone = ["-n", "0"] if "-n" in beside else []
            code = _tested([*failed, "-m", "", *again_alone]).code  # whatever else selects tests, these run
        if code:
            break
    names = (
        f"SECOND RUN NEEDED BY {len(again)}: {' '.join(again)}" if again else "no test was run a second time"
    )
    print(f"== {names}", flush=True)
    if again and (place := os.environ.get("SECOND_RUNS")):
        _note(place, names)
    return code


def _cut(arguments: Sequence[str], at: str) -> Iterator[list[str]]:
    part: list[str] = []
    for word in arguments:
        if word == at:
            yield part
            part = []
        else:
            part.append(word)
    yield part


class _Run(NamedTuple):
    code: int
    """pytest's."""
    failed: list[str]
    """The tests that failed, each once and in order."""
    output: str
    """What was kept of it, to be shown later."""


def _tested(arguments: Sequence[str], *, kept: bool = False) -> _Run:
    with TemporaryDirectory() as folder:
        notes = Path(folder, "failed")
        here = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "twice", *arguments],
            env={**os.environ, "PYTHONPATH": here, _NOTES: str(notes)},
            stdout=subprocess.PIPE if kept else None,
            check=False,
        )
        failed = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    return _Run(done.returncode, list(dict.fromkeys(failed)), (done.stdout or b"").decode(errors="replace"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

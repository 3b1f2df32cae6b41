"""Run tests, and what failed once more by itself; the last line names all that needed its second run.

    python .ci/twice.py ARGUMENTS OF PYTEST [-- OF THE NEXT RUN ...] [+ OF A RUN BESIDE THAT ...]

A busy machine may take longer than a test waits, and a defect fails again. The line is also added to the file
that `SECOND_RUNS` names. As pytest's plugin `twice`, this notes which tests fail.
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
    for beside in _cut(arguments, "--"):
        runs = list(_cut(beside, "+"))
        with ThreadPoolExecutor(len(runs)) as pool:
            tested = list(pool.map(partial(_tested, shown_at_end=len(runs) > 1), runs))
        code = max(code for code, _ in tested)
        failed = [test for _, tests in tested for test in tests]
        if code == _FAILED and failed:
            print("== again, by themselves:", flush=True)
            again += failed
            again_alone = ["-n", "0"] if "-n" in beside else []
            code, _ = _tested([*failed, "-m", "", *again_alone])  # whatever else selects tests, these run
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


def _cut(arguments: Sequence[str], at: str) -> Iterator[list[str]]:
    part: list[str] = []
    for word in arguments:
        if word == at:
            yield part
            part = []
        else:
            part.append(word)
    yield part


def _tested(arguments: Sequence[str], *, shown_at_end: bool = False) -> tuple[int, list[str]]:
    """pytest's exit code, and the tests that failed, each once and in order."""
    with TemporaryDirectory() as folder:
        notes = Path(folder, "failed")
        here = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "twice", *arguments],
            env={**os.environ, "PYTHONPATH": here, _NOTES: str(notes)},
            stdout=subprocess.PIPE if shown_at_end else None,
            check=False,
        )
        if shown_at_end:
            sys.stdout.write(done.stdout.decode(errors="replace"))
            sys.stdout.flush()
        failed = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    return done.returncode, list(dict.fromkeys(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Which promises of the page the tests that passed here have shown; those they have not are named.

    python .ci/promises.py PAGE PASSED

PASSED has a line for each test that passed, as `.ci/twice.py` writes them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TEST = re.compile(r"`(tests/[^`\s]+::[^`\s]+)`")


@dataclass(frozen=True)
class Promise:
    """A row of the page: `tests` are those that show it, none if programs and pages do."""

    text: str
    tests: tuple[str, ...]


def sections(page: str) -> Iterator[tuple[str, list[Promise]]]:
    """The tables, by their titles."""
    for part in page.split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        rows = [line.strip("| ").split(" | ", 1) for line in body.splitlines() if line.startswith("| ")]
        yield title, [Promise(row[0], tuple(_TEST.findall(row[1]))) for row in rows[1:]]


def main(page: str, passed: str) -> None:
    """Print a line for each table, and below it one for each promise of which a test has not passed here."""
    names = {line.partition("[")[0] for line in Path(passed).read_text(encoding="utf-8").splitlines()}
    for title, promises in sections(Path(page).read_text(encoding="utf-8")):
        tested = [each for each in promises if each.tests]
        missing = {each.text: [test for test in each.tests if test not in names] for each in tested}
        open_ones = {text: tests for text, tests in missing.items() if tests}
        print(
            f"{title}: of {len(promises)} promises, {len(tested) - len(open_ones)} shown by all their tests, "
            f"{len(open_ones)} by some of them, {len(promises) - len(tested)} by programs and pages"
        )
        for text, tests in open_ones.items():
            print(f"    {text}: not run here: {', '.join(tests)}")


if __name__ == "__main__":
    main(*sys.argv[1:])

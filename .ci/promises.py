"""The page of promises, made of what was asked (tests/promises.toml) and of the tests' markers.

    python .ci/promises.py                   # write docs/explanation/promises.md
    python .ci/promises.py --passed FILE     # tell which promises the tests named in FILE have shown

A marker, `@pytest.mark.promise("gke: Across rotation")`, has a section and a sentence of tests/promises.toml.
It may have a remark for the page behind it.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PAGE = "docs/explanation/promises.md"
_HEAD = """\
# What was promised

<!-- Made by `python .ci/promises.py` of tests/promises.toml and the tests' markers; a test compares. -->

Everything that was asked of Kinetic, clause by clause, with the tests, benchmarks and pages that show that
it holds; in brackets, what is shown in part only. Tests in `tests/cluster` run against a real Kubernetes
cluster, those in `tests/airflow` against a real Airflow, all others without either. Tests that CI leaves to
`make nightly` are marked so; of others CI may run some cases only (`tests/nightly.toml`).
"""


@dataclass(frozen=True)
class Shown:
    """A test that shows a promise, whether CI leaves it to `make nightly`, and a remark."""

    test: str
    is_nightly: bool
    remark: str

    def __str__(self) -> str:
        remarks = ", ".join(filter(None, [self.remark, "nightly" if self.is_nightly else ""]))
        return f"`{self.test}`" + (f" ({remarks})" if remarks else "")


@dataclass(frozen=True)
class Promise:
    """A row of the page. `also` names programs and pages that show it, `gap` says what nothing shows."""

    says: str
    area: str = ""
    also: str = ""
    gap: str = ""
    shown: list[Shown] = field(default_factory=list)

    def __str__(self) -> str:
        area = f"**{self.area}** " if self.area else ""
        proofs = ", ".join([*map(str, self.shown), *filter(None, [self.also])])
        return f"| {area}{self.says} | {proofs}{f' [{self.gap}]' if self.gap else ''} |"


@dataclass(frozen=True)
class Section:
    """A table of the page, and the limits that are written below it."""

    title: str
    limits: str
    promises: dict[str, Promise]


def read(root: Path) -> list[Section]:
    """Return all sections with their tests. Raises ValueError for what does not fit together."""
    with (root / "tests/promises.toml").open("rb") as file:
        asked: dict[str, Any] = tomllib.load(file)
    sections = {}
    for name, each in asked.items():
        promised = {row["says"]: Promise(**row) for row in each["promises"]}
        if len(promised) < len(each["promises"]):
            raise ValueError(f"tests/promises.toml says a sentence of {each['title']!r} twice")
        sections[name] = Section(each["title"], each["limits"], promised)
    for says, shown in _markers(root):
        name, _, sentence = says.partition(": ")
        if name not in sections or sentence not in sections[name].promises:
            raise ValueError(f"{shown.test} shows {says!r}, which is not in tests/promises.toml")
        sections[name].promises[sentence].shown.append(shown)
    for section in sections.values():
        for promise in section.promises.values():
            if not promise.shown and not promise.also:
                raise ValueError(f"nothing shows {promise.says!r} of {section.title!r}")
    return list(sections.values())


def page(sections: list[Section]) -> str:
    """Return the page."""
    parts = [
        f"## {each.title}\n\n| promise | shown by |\n|---|---|\n"
        + "\n".join(map(str, each.promises.values()))
        + f"\n\n{each.limits}"
        for each in sections
    ]
    return "\n".join([_HEAD, *parts])


def report(sections: list[Section], passed: Path) -> Iterator[str]:
    """Yield a line for each section, and one for each promise of which a test of CI has not passed."""
    names = {line.partition("[")[0] for line in passed.read_text(encoding="utf-8").splitlines()}
    for section in sections:
        promises = section.promises.values()
        rows = {each.says: [one.test for one in each.shown if not one.is_nightly] for each in promises}
        missing = {says: [test for test in tests if test not in names] for says, tests in rows.items()}
        broken = {says: tests for says, tests in missing.items() if tests}
        nightly = sum(not rows[each.says] and bool(each.shown) for each in promises)
        others = sum(not each.shown for each in promises)
        whole = len(promises) - len(broken) - nightly - others
        yield (
            f"{section.title}: of {len(promises)} promises, {whole} shown by all their tests of CI, "
            f"{len(broken)} not by all, {nightly} left to make nightly, {others} shown by programs and pages"
        )
        yield from (f"    {says}: not passed here: {', '.join(tests)}" for says, tests in broken.items())


def _markers(root: Path) -> Iterator[tuple[str, Shown]]:
    with (root / "tests/nightly.toml").open("rb") as file:
        nightly: dict[str, dict[str, list[str]]] = tomllib.load(file)
    for path in sorted((root / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.promise(" not in text:
            continue
        name = str(path.relative_to(root))
        tree = ast.parse(text)
        slow = any(isinstance(each, ast.Assign) and _is_slow(each) for each in tree.body)
        for test in tree.body:
            if not isinstance(test, ast.FunctionDef):
                continue
            left_out = nightly.get(name, {}).get(test.name) == []
            is_nightly = slow or left_out or any(map(_is_slow, test.decorator_list))
            for words in map(_promise, test.decorator_list):
                if words:
                    yield words[0], Shown(f"{name}::{test.name}", is_nightly, *words[1:] or [""])


def _is_slow(node: ast.AST) -> bool:
    """Whether it leaves a whole test to `make nightly`: a marker inside `pytest.param` is of one case."""
    said = ast.unparse(node)
    nightly = ("mark.slow", "mark.examples", "mark.celery")
    return "pytest.param(" not in said and any(each in said for each in nightly)


def _promise(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.promise":
        return [ast.literal_eval(argument) for argument in node.args]
    return []


def main(*words: str) -> None:
    """Write the page, or print the report."""
    root = Path(__file__).parents[1]
    sections = read(root)
    if words[:1] == ("--passed",):
        print("\n".join(report(sections, Path(words[1]))))
    else:
        (root / _PAGE).write_text(page(sections), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

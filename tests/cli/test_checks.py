"""How doctor's checks are carried out: side by side, none for longer than the limit, each with a fix."""

from __future__ import annotations

import ast
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kinetic_core.diagnostics import checks as module
from kinetic_core.diagnostics.checks import Check, Finding, perform, remedy
from kinetic_core.diagnostics.machine_checks import store_check
from kinetic_core.errors import ClusterError, ClusterUnreachable, ConfigurationError, StoreError
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.cli.all_errors import every_error

WELL = Finding("ok", "well")


@pytest.fixture
def silent() -> Iterator[Callable[[], Finding]]:
    """What gets no answer, until the test has ended."""
    over = threading.Event()

    def look() -> Finding:
        over.wait(60)
        return WELL

    yield look
    over.set()


def raising(error: Exception) -> Callable[[], Finding]:
    def look() -> Finding:
        raise error

    return look


def outcomes(*checks: Check, limit: float = 10.0) -> dict[str, tuple[str, str]]:
    return {each.name: (each.finding.outcome, each.finding.found) for each in perform(checks, limit)}


@pytest.mark.promise("command: `doctor`: parallel, from credentials to version skew")
def test_they_run_side_by_side_and_are_told_in_their_order() -> None:
    both = threading.Barrier(2, timeout=90)

    def meets() -> Finding:
        both.wait()
        return WELL

    assert list(outcomes(Check("b", meets), Check("a", meets)).items()) == [
        ("b", ("ok", "well")),
        ("a", ("ok", "well")),
    ]


def test_no_answer_is_a_failure_and_skips_what_needs_it(silent: Callable[[], Finding]) -> None:
    found = outcomes(
        Check("server", silent),
        Check("namespace", lambda: WELL, needs="server"),
        Check("quota", lambda: WELL, needs="namespace"),
        Check("bucket", lambda: WELL),
        limit=0.2,
    )
    assert found == {
        "server": ("fail", "no answer within 0.2 s"),
        "namespace": ("skip", "needs: server"),
        "quota": ("skip", "needs: namespace"),
        "bucket": ("ok", "well"),
    }


def test_a_silent_check_has_failed_though_its_need_is_well(
    silent: Callable[[], Finding],
) -> None:
    found = outcomes(Check("server", lambda: WELL), Check("quota", silent, needs="server"), limit=0.2)
    assert found == {"server": ("ok", "well"), "quota": ("fail", "no answer within 0.2 s")}


def test_silence_may_mean_something_else(silent: Callable[[], Finding]) -> None:
    unknown = Check("image", silent, silence=Finding("skip", "known to others"))
    assert outcomes(unknown, limit=0.2) == {"image": ("skip", "known to others")}


@pytest.mark.parametrize(
    ("outcome", "then"), [("ok", "ok"), ("warn", "ok"), ("fail", "skip"), ("skip", "skip")]
)
def test_what_is_needed_decides(outcome: str, then: str) -> None:
    needed = Check("needed", lambda: Finding(outcome, "found", "fix"))  # type: ignore[arg-type]
    assert outcomes(needed, Check("one", lambda: WELL, needs="needed"))["one"][0] == then
    # A need that is no check of this run is none.
    assert outcomes(Check("one", lambda: WELL, needs="absent"))["one"][0] == "ok"


@pytest.mark.promise("command: … each with a fix")
def test_every_failure_says_what_to_do(silent: Callable[[], Finding]) -> None:
    mistake = ZeroDivisionError("of ours")
    mistake.__cause__ = KeyError("x")
    checks = [
        Check("setting", raising(ConfigurationError("no bucket"))),
        Check("server", raising(ClusterUnreachable("no answer"))),
        Check("store", raising(StoreError("not permitted"))),
        Check("mistake", raising(mistake)),
        Check("silent", silent),
    ]
    reports = perform(checks, 0.2)
    assert {each.finding.outcome for each in reports} == {"fail"}
    assert all(each.finding.fix for each in reports)
    assert len({each.finding.fix for each in reports}) == len(checks)
    assert reports[3].finding.found.endswith("ZeroDivisionError('of ours'), because of KeyError('x')")


def test_there_is_advice_for_every_error() -> None:
    assert all(remedy(error) for error in every_error())
    busy, refused = ClusterError("why", 503), ClusterError("why", 403)
    assert len({remedy(error) for error in (busy, refused, ClusterUnreachable("why"))}) == 3


@pytest.mark.promise("command: … each with a fix")
def test_every_finding_that_is_not_well_is_written_with_a_fix() -> None:
    bare = [
        f"{path.name}:{node.lineno}"
        for path in Path(str(module.__file__)).parent.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "Finding"
        and getattr(node.args[0], "value", "") in ("fail", "warn")
        and len(node.args) + len(node.keywords) < 3
    ]
    assert bare == []


class Clock(MemoryObjectStore):
    """A store whose clock goes behind by so many seconds."""

    behind = 0.0

    def find(self, name: str) -> Any:
        info = super().find(name)
        return info and replace(info, created=info.created - self.behind)


@pytest.mark.promise("command: `doctor`: parallel, from credentials to version skew")
@pytest.mark.parametrize(
    ("behind", "outcome", "said"),
    [
        (0, "ok", "clocks agree"),
        (30, "ok", "clocks agree"),
        (90, "warn", "differ by 90 s"),
        (-90, "warn", "by 90 s"),
    ],
)
def test_the_clock_is_compared_with_the_stores(behind: float, outcome: str, said: str) -> None:
    store = Clock()
    store.behind = behind
    found = store_check(SimpleNamespace(store=store))  # type: ignore[arg-type]
    assert (found.outcome, said in found.found, bool(found.fix)) == (outcome, True, outcome == "warn")
    assert list(store.list("")) == []

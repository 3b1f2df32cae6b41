"""The page of a task with ten thousand inputs, in a real browser.

    .venv-airflow/bin/python benchmarks/batch_page.py

The page's own files, served from this process with answers as Airflow's API server gives them, of a batch
some of whose inputs end between two answers. Times are the browser's own: from the start of navigation to
the first paint and to the frame after the squares were drawn, and of an update from the answer to that frame.
What the API server takes for its answer is not in them.
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from measuring import Verdict, report

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/airflow")]

_RUNS = 5
_WATCH = """
window.drawn = [];
new MutationObserver((changes) => {
  if (!changes.some((each) => each.attributeName === "d")) return;
  const asked = performance.getEntriesByType("resource").filter((each) => /batches/.test(each.name)).at(-1);
  requestAnimationFrame(() => setTimeout(() => {
    window.drawn.push([performance.now(), asked ? asked.responseEnd : 0]);
  }));
}).observe(document, { attributes: true, subtree: true, attributeFilter: ["d"] });
"""
"""Notes when squares were painted and when their answer had come, in milliseconds of the page."""


def measure() -> list[Verdict]:
    import chromium
    import page_frame

    page_frame.answer = changing(page_frame)
    with (
        TemporaryDirectory(prefix="kinetic-page-") as home,
        page_frame.frame() as address,
        chromium.tab(Path(home)) as tab,
    ):
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
        opened = [
            first(tab, f"{address}?dag=training&run={run}&task={page_frame.BATCH}") for run in range(_RUNS)
        ]
        tab.until(f"window.drawn.length > {_RUNS}", 120)
        updates = [(drawn - answered) / 1000 for drawn, answered in tab.ask("window.drawn")[1 : _RUNS + 1]]
    paints, boards = zip(*opened, strict=True)
    return [
        _median("10,000 inputs: first paint of the page", paints, 1.0),
        _median("the same: all squares", boards, 1.0),
        _median("an update of all squares: answer -> painted", updates, 0.2),
    ]


def _median(what: str, times: Sequence[float], target: float) -> Verdict:
    told = ", ".join(f"{each:.2f}" for each in times)
    return Verdict(what, statistics.median(times), target, "s", told)


def changing(page_frame: Any) -> Any:
    """Answers as the page's tests have them, but that a hundred more inputs have ended each time."""
    answered, number = page_frame.answer, itertools.count(1)

    def answer(path: str, query: Mapping[str, list[str]]) -> dict[str, Any]:
        told: dict[str, Any] = {**answered(path, query), "running": True}
        if "squares" in told:
            ended = 100 * next(number)
            told["squares"] = "s" * ended + told["squares"][ended:]
        return told

    return answer


def first(tab: Any, address: str) -> tuple[float, float]:
    """Seconds from the start of navigation to the first paint, and to the squares."""
    tab.open("about:blank")
    tab.until("location.href === 'about:blank'")
    tab.open(address)
    tab.until("window.drawn?.length > 0", 60)
    paint = tab.ask("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    return paint / 1000, tab.ask("window.drawn[0][0]") / 1000


if __name__ == "__main__":
    sys.exit(report(measure()))

"""The page in frames as narrow as Airflow's are: something is there to read, and it looks as it did.

The pictures in `pictures/` are 48 × 36 points: letters are grey, so that another font is no difference.
Write them anew with KINETIC_TEST_NEW_PICTURES=1, and look at them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import chromium
import pytest
from page_frame import BATCH, INPUTS, SILENT, WARM, frame, history, job, of_runs, small, squares

from tests.conftest import needs_program

pytestmark = pytest.mark.airflow
PICTURES = Path(__file__).parent / "pictures"
IS_NEW = bool(os.environ.get("KINETIC_TEST_NEW_PICTURES"))
FRAMES = {
    "graph at 1024": 274,
    "graph at 1280": 351,
    "graph at 1440": 399,
    "graph at 1920": 543,
    "grid at 1024": 731,
    "grid at 1280": 936,
    "grid at 1440": 1064,
    "grid at 1920": 1448,
}
"""Width of the frame that Airflow 3.3 gives a page, by its view and the width of its window."""
HEIGHT = 700
RUN = "dag=training&run=manual"
VIEWS = {
    "all": ("", "#jobs button"),
    "all-job": ("", "#detail h2"),
    "list": (RUN, "#jobs button"),
    "job": (RUN, "#detail h2"),
    "task": (f"{RUN}&task=train_a_model&map=2", "#detail pre.traceback"),
    "batch": (f"{RUN}&task={BATCH}&map=-1", "#detail .counts"),
    "input": (f"{RUN}&task={BATCH}&map=-1", "#detail .input h3"),
    "runs": ("dag=training&task=train_a_model", "#history figcaption"),
}
"""Whose jobs a page shows, and something to read there."""
_MOST = 7.0
"""Mean difference of a point's colours, of 255: a blank page's is 9 and more, that of another font 1."""
_SEEN = """(() => {
  const [box] = document.querySelector("%s").getClientRects();
  const found = document.elementFromPoint((box.left + box.right) / 2, (box.top + box.bottom) / 2);
  return Boolean(found?.closest("%s")) && box.right <= innerWidth;
})()"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with frame() as found:
        yield found


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Tab]:
    needs_program(chromium.program(), "no Chromium (Debian: apt-get install chromium): nobody looked at it")
    with chromium.tab(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


def look(tab: chromium.Tab, address: str, view: str, width: int, theme: str) -> None:
    """Open a view in a frame of this width."""
    more, _ = VIEWS[view]
    tab.size(width, HEIGHT)
    tab.colours(theme)
    mark = f"&at={view}-{width}-{theme}"
    tab.open(f"{address}?{more}{mark}")
    tab.until(f"location.search.endsWith('{mark}') && document.querySelectorAll('#jobs tr').length > 0")
    if view in ("job", "all-job"):
        tab.ask("document.querySelectorAll('#jobs button')[2].click()")
    opened = {"batch": "path[d]", "input": ".causes button"}.get(view, "pre.log")
    if view not in ("all", "list", "runs"):
        tab.until(f"Boolean(document.querySelector('#detail {opened}'))")
        if view not in ("job", "all-job"):  # the charts of a task come last, and move what is below them
            tab.until("Boolean(document.querySelector('#detail .history'))")
        tab.ask("scrollTo(0, 0)")
    if view == "input":
        tab.ask("document.querySelector('.causes button').click()")
        tab.until("Boolean(document.querySelector('#detail .input .traceback'))")
        tab.ask("document.querySelector('#detail .input').scrollIntoView()")


@pytest.mark.promise("page: Something to read in every frame that Airflow gives")
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", FRAMES.values())
@pytest.mark.parametrize("view", VIEWS)
def test_no_frame_is_too_narrow(tab: chromium.Tab, address: str, view: str, width: int, theme: str) -> None:
    look(tab, address, view, width, theme)
    shown = VIEWS[view][1]
    assert tab.ask(_SEEN % (shown, shown)), f"{shown} is not to be seen"
    for part in ("document.documentElement", "document.querySelector('main')"):
        assert tab.ask(f"{part}.scrollWidth <= {part}.clientWidth"), f"{part} is cut off"
    encoded, colours = small(tab, tab.seen())
    file = PICTURES / f"page-{view}-{width}-{theme}.png"
    if IS_NEW:
        file.write_bytes(encoded)
    _, before = small(tab, file.read_bytes())
    difference = sum(abs(one - other) for one, other in zip(colours, before, strict=True)) / len(colours)
    assert difference < _MOST, f"{file.name} differs by {difference:.1f} of 255"


def test_a_blank_page_is_no_likeness(tab: chromium.Tab, address: str) -> None:
    look(tab, address, "list", 731, "light")
    _, before = small(tab, (PICTURES / "page-list-731-light.png").read_bytes())
    tab.ask("document.querySelector('#columns').remove()")
    _, blank = small(tab, tab.seen())
    assert sum(abs(one - other) for one, other in zip(blank, before, strict=True)) / len(blank) > _MOST


def test_one_task_is_shown_without_a_list(tab: chromium.Tab, address: str) -> None:
    look(tab, address, "task", 700, "light")
    hidden = "getComputedStyle(document.querySelector('main')).display === 'none'"
    assert tab.ask(f"{hidden} && getComputedStyle(document.querySelector('#filters')).display === 'none'")
    text = tab.ask("document.querySelector('#detail').innerText")
    assert text.index("ValueError: shard 3 is corrupt") < text.index("Function")
    tab.press("Escape")
    assert tab.ask("document.querySelector('#detail').hidden") is False


@pytest.mark.promise("page: History of a task's durations, waits and cost")
@pytest.mark.parametrize("view", ["task", "batch"])
def test_the_latest_runs_of_a_task_are_small_charts(tab: chromium.Tab, address: str, view: str) -> None:
    """On the page of one job or batch, and above those of a task; not where those of one run are listed."""
    told = "[...document.querySelectorAll('.history figcaption')].map((each) => each.textContent)"
    titles = ["Ran 3 min 30 s", "Waited 1 min 0 s", "Cost 2.15 EUR"]
    look(tab, address, view, 731, "light")
    tab.until(f"{told}.length === 3")
    assert tab.ask(told) == titles
    columns = "[...document.querySelectorAll('.history figure:first-child .run')]"
    drawn = tab.ask(f"{columns}.map((each) => each.offsetHeight)")
    longest = max(each["ran"] for each in history())
    assert drawn == pytest.approx([max(drawn) * each["ran"] / longest for each in history()], abs=1)
    assert tab.ask("document.querySelector('.run.failed').title").endswith("4 min 0 s, failed")
    task = BATCH if view == "batch" else "train_a_model"
    tab.open(f"{address}?dag=training&task={task}&at=history")
    tab.until(f"location.search.endsWith('&at=history') && {told}.length === 3")
    assert tab.ask(told) == titles
    look(tab, address, "list", 730, "light")
    assert tab.ask(told) == []
    assert tab.troubles() == []


@pytest.mark.promise("page: State, reason, attempts")
@pytest.mark.promise("page: HTML in names and logs is never rendered")
def test_each_attempt_says_why_it_ended(tab: chromium.Tab, address: str) -> None:
    look(tab, address, "task", 700, "light")
    section = "[...document.querySelectorAll('#detail section')].find((e) => /^Attempts/.test(e.textContent))"
    assert tab.ask(f"[...{section}.querySelectorAll('li')].map((each) => each.textContent)") == [
        "try 1: failed ValueError: shard 3 is <img src=x> (job-of-try-1)",
        "try 2, attempt 1: unknown its pod is gone (job-0000000000000002)",
        "try 2, attempt 2: failed this one",
    ]
    assert tab.ask("document.querySelectorAll('img').length") == 0
    look(tab, address, "job", 733, "light")
    assert tab.ask(f"{section} !== undefined")


_WHOLE = """[...document.querySelectorAll('#jobs button')].map((button) => {
  const range = document.createRange();
  range.selectNodeContents(button);
  const [home, boxes] = [button.getBoundingClientRect(), [...range.getClientRects()]];
  const isInside = (box) => box.left >= home.left - 1 && box.right <= Math.min(home.right, innerWidth) + 1;
  return boxes.length > 0 && boxes.every(isInside) ? button.textContent : "cut off";
})"""
"""The names of the rows as they are displayed."""


@pytest.mark.promise("page: For a DAG run and for a task: its jobs")
@pytest.mark.parametrize("frame", [name for name in FRAMES if name.endswith(("1024", "1280"))])
def test_the_runs_of_a_task_are_told_apart(tab: chromium.Tab, address: str, frame: str) -> None:
    """Names of runs differ at their ends, which a narrow column cuts off first."""
    look(tab, address, "runs", FRAMES[frame], "light")
    shown = tab.ask(_WHOLE)
    assert shown == [f"{each['run_id']}[{each['map_index']}]" for each in of_runs()]
    assert len(set(shown)) == 20
    assert tab.ask("document.querySelector('thead th').textContent") == "Run"


@pytest.mark.promise("page: State, reason, attempts")
@pytest.mark.parametrize("width", [399, 731, 1448])
def test_why_there_is_no_job_is_shown_whole(tab: chromium.Tab, address: str, width: int) -> None:
    look(tab, address, "list", width, "light")
    cell = "document.querySelector('#jobs .whole')"
    text = job(5)["reason"] + ": " + job(5)["message"]
    assert tab.ask(f"{cell}.textContent") == f"{text}, waited 6 min 10 s"
    tab.until(f"{cell}.scrollWidth <= {cell}.clientWidth && {cell}.clientHeight > 0")


@pytest.mark.promise("page: Log tail")
def test_a_local_job_that_printed_nothing(tab: chromium.Tab, address: str) -> None:
    tab.open(f"{address}?{RUN}&task=train_a_model&map={SILENT}&at=silent")
    said = "[...document.querySelectorAll('#detail section')].map((each) => each.textContent)"
    tab.until(f"location.search.endsWith('&at=silent') && {said}.includes('Last linesit printed nothing')")
    assert tab.ask("document.querySelectorAll('#detail pre').length") == 0
    verbs = "[...document.querySelectorAll('#detail .command code')].map((each) => each.textContent)"
    store = "KINETIC_LOCAL_STORE='/home/jan/my store'"
    job_id = f"job-{SILENT:016x}"
    assert tab.ask(verbs) == [f"{store} kinetic jobs {verb} {job_id}" for verb in ("logs", "explain")]


@pytest.mark.parametrize(("are_batches", "one"), [(False, "job"), (True, "batch")])
def test_the_charts_of_a_mapped_task_name_whose_run_is_longest(
    tab: chromium.Tab, address: str, are_batches: bool, one: str
) -> None:
    tab.open(address)
    runs = [{**each, "jobs": 3, "are_batches": are_batches} for each in history()]
    asked = json.dumps({"history": runs, "currency": "EUR"})
    titles = "[...home.querySelectorAll('figcaption')].map((each) => each.textContent)"
    drawn = f"import('./history.mjs').then((all) => {{ const home = all.charts({asked}); return {titles}; }})"
    told = tab.until(drawn)
    assert told == [
        f"Longest run of a {one} 3 min 30 s",
        f"Longest wait of a {one} 1 min 0 s",
        "Cost 2.15 EUR",
    ]


def test_commands_can_be_copied(tab: chromium.Tab, address: str) -> None:
    look(tab, address, "task", 700, "light")
    tab.ask("document.addEventListener('copy', () => { window.copied = String(getSelection()); })")
    tab.click(".command button")
    assert tab.ask("window.copied") == "kinetic jobs logs job-0000000000000002"
    assert tab.ask("document.querySelector('.command button').textContent") == "Copied"


def test_the_worker_of_a_call_says_what_it_waited(tab: chromium.Tab, address: str) -> None:
    tab.size(700, HEIGHT)
    tab.open(f"{address}?{RUN}&task=train_a_model&map={WARM}&at=warm")
    tab.until("location.search.endsWith('&at=warm') && Boolean(document.querySelector('pre.log'))")
    text = tab.ask("document.querySelector('#detail').innerText")
    assert "job-00000000000000bb: idle, 3 calls so far, ends after 10 min 0 s without one" in text
    _, workers = text.split("Where its worker's time went")
    assert "idle 5 min 40 s" in workers


def test_what_to_do_can_be_copied(tab: chromium.Tab, address: str) -> None:
    """Of a hint with a command, the command alone."""
    pending = next(index for index in range(24) if job(index)["status"] == "PENDING")
    tab.size(700, HEIGHT)
    tab.open(f"{address}?{RUN}&task=train_a_model&map={pending}&at=hint")
    tab.until("location.search.endsWith('&at=hint') && Boolean(document.querySelector('.advice button'))")
    tab.ask("document.addEventListener('copy', () => { window.copied = String(getSelection()); })")
    tab.ask("document.querySelector('.advice').scrollIntoView()")
    tab.click(".advice button")
    assert tab.ask("window.copied") == "kinetic pool add --accelerator tpu-v6e-8"
    assert "no pool of the cluster has it" in tab.ask("document.querySelector('.advice').textContent")


def test_chips_and_cores_are_told_apart(tab: chromium.Tab, address: str) -> None:
    look(tab, address, "list", 936, "light")
    assert "(19,200 chip-seconds and 320 core-seconds, 25.00 EUR)" in tab.ask(
        "document.querySelector('#summary').textContent"
    )


ALL_PATHS = (
    "[...document.querySelectorAll('.squares path')].map((each) => each.getAttribute('d') ?? '').join('')"
)


def test_every_input_of_a_batch_is_a_square(tab: chromium.Tab, address: str) -> None:
    look(tab, address, "batch", 730, "light")
    assert tab.ask(f"{ALL_PATHS}.split('M').length - 1") == INPUTS
    failed = "document.querySelector('.input-failed').getAttribute('d').split('M').length - 1"
    assert tab.ask(failed) == squares().count("f")
    assert tab.ask("document.querySelectorAll('.squares *').length") < 10
    assert "6,927 succeeded" in tab.ask("document.querySelector('.counts').textContent")
    assert tab.ask("document.querySelectorAll('img').length") == 0
    assert tab.troubles() == []


def test_an_input_is_chosen_by_mouse_keys_and_number(tab: chromium.Tab, address: str) -> None:
    look(tab, address, "batch", 732, "light")
    title = "(document.querySelector('#detail .input h3')?.textContent ?? '')"
    tab.click(".causes button:nth-of-type(2)")
    tab.until(f"{title}.startsWith('Input 102 failed, attempt 2')")
    assert tab.ask("document.querySelector('#detail .input .traceback').textContent").endswith("<img src=x>")
    tab.ask("document.querySelector('.squares').focus()")
    tab.press("ArrowDown")
    tab.press("Enter")
    tab.until(f"{title}.startsWith('Input 212 ')")  # 110 in a row
    tab.ask("document.querySelector('.pick input').value = '7'")
    tab.click(".pick button")
    tab.until(f"{title}.startsWith('Input 7 ')")
    tab.click(".squares")
    tab.until(f"/^Input [0-9]{{4}} /.test({title})")
    assert "input " in tab.ask("document.querySelector('.board .hint').textContent")
    assert tab.troubles() == []

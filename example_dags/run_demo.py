"""`make demo`: a real Airflow runs `fan_out.py` and `failures.py` on this machine and shows what came out.

    python example_dags/run_demo.py               run, print the results, stop everything
    KEEP=1 python example_dags/run_demo.py        leave Airflow and its UI running
    python example_dags/run_demo.py stop HOME     stop one that was left running

On a terminal the tasks are a table that lives, and Airflow stays up until Ctrl-C.
Exits with 0 if every task ended as it should, 1 if one did not, 130 or 143 if Ctrl-C or SIGTERM came earlier.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from demo_airflow import AirflowTrouble, DemoAirflow
from demo_processes import stop_home, stop_on_signals
from rich.console import Console
from rich.live import Live
from rich.table import Table

DAGS = ("fan_out", "failures")
FAILS = "read_shard"
"""The task that is there to fail."""
COLOURS = {
    "success": "green",
    "failed": "red",
    "up_for_retry": "yellow",
    "running": "cyan",
    "deferred": "magenta",
}
PROJECT = Path(__file__).resolve().parent.parent
RUN_TIMEOUT = 300.0

Instance = dict[str, Any]
"""A task instance as Airflow's API tells it."""


class Screen:
    """Progress lines with the seconds since the start, repeated ones once; on a terminal, a table too."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self._began = time.monotonic()
        self._last = ""

    @property
    def is_terminal(self) -> bool:
        """Whether somebody looks on, who can press Ctrl-C."""
        return self.console.is_terminal and sys.stdin.isatty()

    def say(self, text: str) -> None:
        if text != self._last:
            line = f"{time.monotonic() - self._began:6.1f} s  {text}"
            with suppress(OSError):  # a terminal that was closed: what is left to do is done unseen
                self.console.print(line, markup=False, soft_wrap=True)
        self._last = text

    def live(self) -> Live | nullcontext[None]:
        """A place on the terminal that `show` draws anew."""
        return Live(console=self.console, auto_refresh=False) if self.is_terminal else nullcontext()

    def show(self, instances: list[Instance], live: Live | None) -> None:
        if live is not None:
            live.update(table(instances), refresh=True)
            return
        tasks: dict[str, Counter[str]] = {}
        for each in instances:
            tasks.setdefault(each["task_id"], Counter())[each["state"] or "waiting"] += 1
        self.say(" · ".join(f"{task} {_counts(states)}" for task, states in tasks.items()))


def main(arguments: list[str]) -> int:
    """Run the demo, or stop one that was kept; the exit code."""
    if arguments[:1] == ["stop"] and len(arguments) == 2:
        stop_home(Path(arguments[1]).resolve())
        return 0
    if arguments:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    return run_demo(keep=os.environ.get("KEEP", "") not in ("", "0"))


def run_demo(*, keep: bool) -> int:
    """Start Airflow, run the DAGs, print the results; unless `keep`, stop it (on a terminal, at Ctrl-C)."""
    screen = Screen()
    parent = PROJECT / ".demo"
    parent.mkdir(exist_ok=True)
    home = Path(mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=parent))
    airflow = DemoAirflow(home, dags_folder=PROJECT / "example_dags")
    stop_on_signals(lambda number: sys.exit(128 + number))
    failed = True
    try:
        airflow.start(screen.say)
        failed = not show_runs(airflow, screen)
        if not failed and not keep and screen.is_terminal:
            wait_for_ctrl_c(airflow, screen)
    except AirflowTrouble as error:
        sys.stderr.write(f"the demo failed: {error}\n")
        keep = False
    finally:
        if not keep or failed:
            stop_on_signals(lambda _: None)  # impatience must not leave half of it running
            screen.say("stopping everything")
            airflow.stop()
    if failed:
        sys.stderr.write(f"the demo failed; logs: {airflow.logs} and {home / 'logs'}\n")
        return 1
    if keep:
        screen.say(f"Airflow stays up: open {airflow.api.url}")
        screen.say(f"stop it with: {sys.executable} {Path(__file__).resolve()} stop {home}")
    else:
        rmtree(home)
        screen.say("done, and everything is stopped")
    return 0


def show_runs(airflow: DemoAirflow, screen: Screen) -> bool:
    """Run the DAGs and show them until they have ended; whether every task ended as it should."""
    runs = {dag_id: airflow.run(dag_id) for dag_id in DAGS}
    screen.say(f"Airflow is up at {airflow.api.url}; running {' and '.join(DAGS)}")
    with screen.live() as live:

        def ended() -> bool:
            screen.show(instances_of(airflow, runs), live)
            states = [airflow.api.run_state(dag_id, run_id) for dag_id, run_id in runs.items()]
            return all(state in ("success", "failed") for state in states)

        airflow.until(ended, RUN_TIMEOUT, f"{' and '.join(DAGS)} to end")
        instances = instances_of(airflow, runs)
        screen.show(instances, live)
    print(f"\n{results(airflow, instances)}\n\n{where_to_look(airflow, instances)}\n", flush=True)
    return all(each["state"] == ("failed" if each["task_id"] == FAILS else "success") for each in instances)


def instances_of(airflow: DemoAirflow, runs: dict[str, str]) -> list[Instance]:
    return [each for run in runs.items() for each in airflow.api.task_instances(*run)]


def wait_for_ctrl_c(airflow: DemoAirflow, screen: Screen) -> None:
    """Leave Airflow up for as long as the terminal is there. Raises AirflowTrouble if a part of it ends."""
    told: list[int] = []
    stop_on_signals(told.append)
    screen.say(f"Airflow stays up at {airflow.api.url} until you press Ctrl-C")
    airflow.until(lambda: told, float("inf"), "Ctrl-C")


def _counts(states: Counter[str]) -> str:
    if states.total() == 1:
        return next(iter(states))
    return ", ".join(f"{number} {state}" for state, number in states.items())


def table(instances: list[Instance]) -> Table:
    """The tasks as they are now, a line each."""
    shown = Table(box=None, pad_edge=False)
    for title in ("DAG", "TASK", "STATE", "SECONDS"):
        shown.add_column(title, justify="right" if title == "SECONDS" else "left")
    for each in instances:
        state = each["state"] or "waiting"
        styled = f"[{COLOURS.get(state, 'dim')}]{state}[/]"
        shown.add_row(each["dag_id"], name_of(each), styled, _seconds(each, datetime.now(UTC)))
    return shown


def results(airflow: DemoAirflow, instances: list[Instance]) -> str:
    """One line a task instance: what it is, how it ended, how long it took, its result, its log."""
    rows = [("TASK", "STATE", "SECONDS", "RESULT", "LOG")]
    for each in instances:
        result = airflow.api.xcom(each)
        shown = "" if result is None else _short(result)
        rows.append((name_of(each), str(each["state"]), _seconds(each), shown, airflow.api.log_url(each)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def where_to_look(airflow: DemoAirflow, instances: list[Instance]) -> str:
    """What is worth opening in the UI, and what to try next."""
    urls = {each["task_id"]: airflow.api.log_url(each) for each in instances}
    return "\n".join(
        (
            f"{FAILS} failed on purpose. In the UI, its tab Kinetic shows the traceback: {urls[FAILS]}",
            f"stumble needed a second attempt, in the same try of the task: {urls['stumble']}",
            f"All jobs of this Airflow are on one page: {airflow.api.url}/plugin/kinetic-nav",
            f"Now edit {PROJECT / 'example_dags' / 'fan_out.py'} and trigger fan_out again:",
            "jobs run what you have saved.",
        )
    )


def name_of(instance: Instance) -> str:
    return instance["task_id"] + (f"[{instance['map_index']}]" if instance["map_index"] >= 0 else "")


def _seconds(instance: Instance, now: datetime | None = None) -> str:
    """How long it took, or has taken until `now`."""
    start, end = (
        datetime.fromisoformat(each) if each else None
        for each in map(instance.get, ("start_date", "end_date"))
    )
    end = end or now
    return f"{(end - start).total_seconds():.1f}" if start and end else ""


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

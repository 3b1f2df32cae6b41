"""`make demo`: a real Airflow runs `fan_out.py` on this machine and shows what came out.

    python example_dags/run_demo.py               run, print the results, stop everything
    KEEP=1 python example_dags/run_demo.py        leave Airflow and its UI running
    python example_dags/run_demo.py stop HOME     stop one that was left running

Exits with 0 if every task succeeded, 1 if one did not, 130 or 143 after Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

from demo_airflow import AirflowTrouble, DemoAirflow
from demo_processes import stop_home, stop_on_signals

DAG_ID = "fan_out"
PROJECT = Path(__file__).resolve().parent.parent
RUN_TIMEOUT = 300.0


class Screen:
    """Progress lines with the seconds since the start; repeated lines once."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._last = ""

    def say(self, text: str) -> None:
        if text != self._last:
            print(f"{time.monotonic() - self._began:6.1f} s  {text}", flush=True)
        self._last = text


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
    """Start Airflow, run the DAG, print the table, stop Airflow (unless `keep`)."""
    screen = Screen()
    parent = PROJECT / ".demo"
    parent.mkdir(exist_ok=True)
    home = Path(mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=parent))
    airflow = DemoAirflow(home, dags_folder=PROJECT / "example_dags")
    stop_on_signals(lambda number: sys.exit(128 + number))
    failed = True
    try:
        airflow.start(screen.say)
        run_id = airflow.run(DAG_ID)
        screen.say(f"Airflow is up at {airflow.api.url}; running {DAG_ID}")
        airflow.until(lambda: _ended(airflow, run_id, screen), RUN_TIMEOUT, f"{DAG_ID} to end")
        instances = airflow.api.task_instances(DAG_ID, run_id)
        print(f"\n{table(airflow, instances)}\n", flush=True)
        failed = airflow.api.run_state(DAG_ID, run_id) != "success"
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


def _ended(airflow: DemoAirflow, run_id: str, screen: Screen) -> bool:
    """Show how far the run is; whether it has ended."""
    instances = airflow.api.task_instances(DAG_ID, run_id)
    tasks: dict[str, Counter[str]] = {}
    for each in instances:
        tasks.setdefault(each["task_id"], Counter())[each["state"] or "waiting"] += 1
    shown = (f"{task} {_counts(states)}" for task, states in tasks.items())
    screen.say(" · ".join(shown))
    return airflow.api.run_state(DAG_ID, run_id) in ("success", "failed")


def _counts(states: Counter[str]) -> str:
    if states.total() == 1:
        return next(iter(states))
    return ", ".join(f"{number} {state}" for state, number in states.items())


def table(airflow: DemoAirflow, instances: list[dict[str, Any]]) -> str:
    """One line a task instance: what it is, how it ended, how long it took, its result, its log."""
    rows = [("TASK", "STATE", "SECONDS", "RESULT", "LOG")]
    for each in instances:
        name = each["task_id"] + (f"[{each['map_index']}]" if each["map_index"] >= 0 else "")
        result = airflow.api.xcom(each)
        shown = "" if result is None else _short(result)
        rows.append((name, str(each["state"]), _seconds(each), shown, airflow.api.log_url(each)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _seconds(instance: dict[str, Any]) -> str:
    if not instance["start_date"] or not instance["end_date"]:
        return ""
    start, end = (datetime.fromisoformat(instance[key]) for key in ("start_date", "end_date"))
    return f"{(end - start).total_seconds():.1f}"


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

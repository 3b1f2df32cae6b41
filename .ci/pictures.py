"""Pictures of the documentation's home page, made from a real run: `make pictures`.

Run with Airflow's interpreter and `example_dags` and `tests/airflow` on PYTHONPATH; needs Chromium and tmux.
Starts the demo's Airflow, and takes what a browser shows of a task that failed; starts a script whose job
fails at its first attempt, and takes what the terminal shows of it. Argument: the directory to write to.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import chromium
from demo_airflow import DemoAirflow
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
COLUMNS, ROWS = 110, 24
SCRIPT = """\
import os

import kinetic_core


@kinetic_core.run(accelerator="cpu", backend="local", retries=1)
def train(steps: int) -> float:
    print(f"training for {steps} steps")
    if os.environ["KINETIC_FAILED_COUNT"] == "0":
        raise ConnectionError("the dataset's server hung up")
    return 1.0 / steps


"""
SHOWN = {
    "terminal.svg": "print(train(10))\n",
    "explain.svg": """\
handle = train.run_async(10)
handle.result(stream_logs=False, cleanup=False)
print(handle.explain())
handle.cleanup()
""",
}
"""What each picture of a terminal shows, at the end of `SCRIPT`."""
_FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)
"""Fonts that rich would have a reader's browser load from elsewhere."""


def main(directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kinetic-pictures-") as home:
        for name, program in SHOWN.items():
            (directory / name).write_text(terminal(Path(home) / name, SCRIPT + program))
        for scheme, picture in task_pages(Path(home) / "airflow").items():
            (directory / f"task-{scheme}.png").write_bytes(picture)


def terminal(home: Path, program: str) -> str:
    """What a terminal shows of a script, as an SVG."""
    home.mkdir()
    (home / "train.py").write_text(program)
    tmux = ["tmux", "-L", home.name]
    begin = [
        *tmux,
        "-f",
        "/dev/null",
        "new-session",
        "-d",
        "-x",
        str(COLUMNS),
        "-y",
        str(ROWS),
        "-c",
        str(home),
    ]
    environment = {**os.environ, "KINETIC_LOCAL_STORE": str(home / "store"), "PYTHONPATH": str(ROOT)}
    subprocess.run([*begin, f"{sys.executable} train.py; touch ended; cat"], env=environment, check=True)
    try:
        deadline = time.monotonic() + 300
        while not (home / "ended").exists():
            if time.monotonic() > deadline:
                sys.exit("the script has not ended within five minutes")
            time.sleep(0.5)
        shown = subprocess.run([*tmux, "capture-pane", "-ep"], capture_output=True, text=True, check=True)
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(shown.stdout.rstrip()))
    return _FONT.sub("", console.export_svg(title="python train.py"))


def task_pages(home: Path) -> dict[str, bytes]:
    """What a browser shows of the task that failed, in Airflow's UI, light and dark, as PNGs."""
    home.mkdir()
    airflow = DemoAirflow(home.resolve(), dags_folder=ROOT / "example_dags")
    try:
        airflow.start(print)
        run_id = airflow.run("failures")
        airflow.until(
            lambda: airflow.api.run_state("failures", run_id) in ("success", "failed"), 300, "failures"
        )
        (failed,) = [
            each for each in airflow.api.task_instances("failures", run_id) if each["state"] == "failed"
        ]
        found = {}
        with chromium.tab(home / "chromium") as tab:
            tab.size(1440, 900)
            for scheme in ("light", "dark"):
                tab.colours(scheme)
                tab.open(f"{airflow.api.log_url(failed)}/plugin/kinetic-task-instance")
                tab.until(
                    "document.querySelector('iframe')?.contentDocument?.body?.innerText.includes('corrupt')",
                    60,
                )
                time.sleep(2)  # Airflow's own panels come when they come
                found[scheme] = tab.seen()
        return found
    finally:
        airflow.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

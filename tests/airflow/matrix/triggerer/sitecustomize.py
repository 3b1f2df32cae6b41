"""Stop a triggerer where a cell wants it: every component of the matrix's Airflow imports this as it starts.

The file `hold` of a cell's folder names a job, and the step at which the job's trigger waits, in a thread,
until the file is gone.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

FOLDERS = os.environ.get("MATRIX_CELLS", "")
_JOB = r"(?P<job>job-[0-9a-f]{16})"
_COLLECTING, _PUSHED = "finished, not collected", "pushed, not ended"
STEPS = (
    (_COLLECTING, "open", rf"/{_JOB}/result$"),
    (_COLLECTING, "http.client.send", rf"^GET /storage/[^ ]+%2F{_JOB}%2Fresult\?alt=media"),
    (_PUSHED, "os.remove", rf"/{_JOB}/payload-[0-9a-f]+\.pkl$"),
    (_PUSHED, "http.client.send", rf"^DELETE /apis/batch/[^ ]+{_JOB}"),
)
"""Phases that begin with an event of Python's audit table, each with a pattern of what the event is about: a
path of the local backend's store, or the beginning of what is sent."""
_EVENTS = {event for _, event, _ in STEPS}


def hold(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _EVENTS or not threading.current_thread().name.startswith("kinetic-trigger"):
        return
    about = _subject(event, arguments)
    for phase, known, pattern in STEPS:
        if event == known and (found := re.search(pattern, about)):
            wait_at(f"{found['job']} {phase}")


def wait_at(step: str) -> None:
    for file in Path(FOLDERS).glob("*/hold"):
        while _content(file) == step:
            file.with_name("held").touch()
            time.sleep(0.05)


def _subject(event: str, arguments: tuple[Any, ...]) -> str:
    if event == "http.client.send":
        return arguments[1][:2000].decode("latin-1") if isinstance(arguments[1], bytes) else ""
    return str(arguments[0])


def _content(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


if FOLDERS and "triggerer" in sys.orig_argv:
    sys.addaudithook(hold)

"""Stop a triggerer where a cell wants it: every component of the matrix's Airflow imports this as it starts.

The file `hold` of a cell's folder names the step at which a thread of its trigger waits until it is gone.
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
STEPS = {
    "open": ("finished, not collected", r"/(?P<cell>[^/]+)/kinetic/store/jobs/[^/]+/result$"),
    "os.remove": ("pushed, not ended", r"/(?P<cell>[^/]+)/kinetic/store/jobs/[^/]+/payload-[0-9a-f]+\.pkl$"),
}
"""By the event of Python's audit table: the phase that begins with it, and the path that it is about."""


def hold(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in STEPS or not threading.current_thread().name.startswith("kinetic-trigger"):
        return
    phase, pattern = STEPS[event]
    if not (found := re.search(pattern, str(arguments[0]))):
        return
    folder = Path(FOLDERS, found["cell"])
    while _content(folder / "hold") == phase:
        (folder / "held").touch()
        time.sleep(0.05)


def _content(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


if FOLDERS and "triggerer" in sys.orig_argv:
    sys.addaudithook(hold)

"""Processes of jobs on this machine: how they are started and ended."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

STOPPED_AT_ONCE = """
import os, signal, sys, time
from kinetic_core.backends.local import process

signal.signal(signal.SIGTERM, lambda *_: None)
os.register_at_fork(after_in_child=lambda: time.sleep(0.5))
folder = sys.argv[1]
child = process.spawn(["/bin/sleep", "60"], {}, log=f"{folder}/log", folder=folder, enter=None, keep=())
print(process.stop(child, 20.0))
"""


def test_a_process_is_told_to_end_however_early(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOPPED_AT_ONCE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == 128 + signal.SIGTERM

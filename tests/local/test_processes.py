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


SUBMITTERS = """
import os, sys
from kinetic_core.backends.local.layout import Layout
from kinetic_core.backends.local.queue import start_agent

layout, lock = Layout(sys.argv[1]), os.open(os.devnull, os.O_RDONLY)
left = 0
for number in range(30):
    submitter = os.fork()
    if submitter == 0:
        os.setsid()
        start_agent(layout, "default", f"job-{number:016x}", lock)
        os._exit(0)
    os.waitpid(submitter, 0)
    try:
        os.killpg(submitter, 0)
        left += 1
    except ProcessLookupError:
        continue
print(left)
"""


def test_no_agent_is_in_the_group_of_its_submitter(tmp_path: Path) -> None:
    """A job that submits a job ends with its process group as soon as its function has returned."""
    command = [sys.executable, "-c", SUBMITTERS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) == 0

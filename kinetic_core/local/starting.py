"""Starting a job's agent, a process of its own that this machine keeps when the submitter has gone."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from kinetic_core.cluster.bootstrap import PACKAGE, runner_archive, runner_files
from kinetic_core.errors import BackendUnavailable
from kinetic_core.local import process
from kinetic_core.local.layout import Layout

_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_KEPT_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "SSL_CERT_")
_AGENT = """\
import gc, os, sys
gc.disable()
if os.fork():
    os._exit(0)
os.setsid()
sys.path.insert(0, sys.argv[1])
from kinetic_core.local.agent import main
main(*sys.argv[2:])
os._exit(0)
"""
"""Forks before it imports: nobody waits for the agent, and it is nobody's child to leave as a zombie."""


def unpack_runner(layout: Layout) -> None:
    """Put the runner, compiled, where this machine's jobs start it from, unless it is there."""
    folder = layout.runner(runner_archive()[0])
    if os.path.isdir(folder):
        return
    import compileall

    fresh = f"{folder}.{os.getpid()}-{time.monotonic_ns()}"
    os.makedirs(os.path.join(fresh, PACKAGE))
    for file in runner_files():
        Path(fresh, PACKAGE, file.name).write_bytes(file.read_bytes())
    compileall.compile_dir(fresh, quiet=2)
    try:
        os.rename(fresh, folder)
    except OSError:
        process.remove_tree(fresh)
        if not os.path.isdir(folder):  # else another process was quicker with the same runner
            raise


def start_agent(layout: Layout, namespace: str, job_id: str, lock: int) -> None:
    """Start the agent, which inherits the job's lock. Raises BackendUnavailable, OSError."""
    import subprocess

    source = str(Path(__file__).parents[2])
    command = [sys.executable, "-I", "-S", "-c", _AGENT, source, layout.root, namespace, job_id, str(lock)]
    with open(os.path.join(layout.root, "agent.log"), "ab") as log:
        started = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={k: v for k, v in os.environ.items() if k in _KEPT or k.startswith(_KEPT_PREFIXES)},
            cwd="/",
            pass_fds=[lock],
            check=False,
        )
    if started.returncode != 0:
        raise BackendUnavailable(
            f"{sys.executable} cannot start {job_id}'s agent (exit code {started.returncode}): {log.name}"
        )

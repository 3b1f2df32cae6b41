"""Starting agents and supervisors: processes that this machine keeps when the submitter has gone."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from kinetic_core.cluster.bootstrap import PACKAGE, runner_archive, runner_files
from kinetic_core.errors import BackendUnavailable
from kinetic_core.local import process
from kinetic_core.local.layout import Layout
from kinetic_core.model.line import Line

_KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_KEPT_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "SSL_CERT_")
_DETACHED = """\
import gc, os, sys
gc.disable()
if os.fork():
    os._exit(0)
os.setsid()
sys.path.insert(0, sys.argv[1])
__import__("kinetic_core.local", fromlist=[sys.argv[2]])
getattr(sys.modules["kinetic_core.local"], sys.argv[2]).main(*sys.argv[3:])
os._exit(0)
"""
"""Forks before it imports: nobody waits for the process, and it is nobody's child to leave as a zombie."""


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
    _start(layout, "agent", [namespace, job_id], lock)


def start_supervisor(layout: Layout, namespace: str, line: Line, lock: int | None) -> None:
    """Start a batch's supervisor, which inherits the batch's lock; without one it waits for it.

    Raises BackendUnavailable, OSError.
    """
    _start(layout, "supervisor", [namespace, json.dumps(asdict(line))], lock)


def _start(layout: Layout, module: str, words: list[str], lock: int | None) -> None:
    """Run `main` of a module of this room with the layout's root, those words, and the lock if given."""
    import subprocess

    source = str(Path(__file__).parents[2])
    held = [] if lock is None else [lock]
    words = [layout.root, *words, *map(str, held)]
    command = [sys.executable, "-I", "-S", "-c", _DETACHED, source, module, *words]
    with open(os.path.join(layout.root, "agent.log"), "ab") as log:
        started = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={k: v for k, v in os.environ.items() if k in _KEPT or k.startswith(_KEPT_PREFIXES)},
            cwd="/",
            pass_fds=held,
            check=False,
        )
    if started.returncode != 0:
        raise BackendUnavailable(
            f"{sys.executable} cannot start the {module} of {words[2]} (exit code {started.returncode}): "
            f"{log.name}"
        )

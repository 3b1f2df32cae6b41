"""What Airflow calls when one of its components starts: a triggerer then looks after forgotten jobs, too."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from airflow.listeners import hookimpl

_started = threading.Event()


@hookimpl
def on_starting(component: Any) -> None:  # noqa: ARG001  the name is the hook's
    """Called before `component` says which it is: the command line does.

    A triggerer forks the process of its triggers next. A thread that is busy at that moment, with a lock
    that the child inherits, would stop it for ever, so ours starts when that is done.
    """
    if sys.argv[1:2] == ["triggerer"]:
        os.register_at_fork(after_in_parent=_start)


def _start() -> None:
    if not _started.is_set():
        _started.set()
        threading.Thread(target=_attend, name="kinetic-forgotten-jobs", daemon=True).start()


def _attend() -> None:
    """Import here: every process of Airflow's loads this plugin."""
    from airflow_provider.unattended import attend

    attend()

"""Listener for the start of an Airflow component: a triggerer then also searches for orphans."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

from airflow.listeners import hookimpl

_started = threading.Event()


@hookimpl
def on_starting(component: Any) -> None:  # noqa: ARG001  the name is the hook's
    """Start the search when the command line starts a triggerer.

    Airflow calls this before `component` says what it is, so the command line decides. A triggerer forks the
    process of its triggers next. A busy thread could hold a lock at that moment, which the child would
    inherit and never get, so the search starts after the fork.
    """
    if sys.argv[1:2] == ["triggerer"]:
        os.register_at_fork(after_in_parent=_start)


def _start() -> None:
    if not _started.is_set():
        _started.set()
        threading.Thread(target=_attend, name="kinetic-forgotten-jobs", daemon=True).start()


def _attend() -> None:
    """Import the search at first use, because every Airflow process loads this plugin."""
    from airflow_provider.orphans import attend

    attend()

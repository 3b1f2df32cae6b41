"""What Airflow calls when one of its components starts: a triggerer then looks after forgotten jobs, too."""

from __future__ import annotations

import sys
import threading
from typing import Any

from airflow.listeners import hookimpl


@hookimpl
def on_starting(component: Any) -> None:  # noqa: ARG001  the name is the hook's
    """Called before `component` says which it is: the command line does."""
    if sys.argv[1:2] == ["triggerer"]:
        threading.Thread(target=_attend, name="kinetic-forgotten-jobs", daemon=True).start()


def _attend() -> None:
    """Import late: every process of Airflow's loads this plugin, and the triggerer forks soon."""
    from airflow_provider.unattended import attend

    attend()

"""Tasks that tell somebody when their jobs wait."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task
from airflow.sdk.definitions.deadline import AsyncCallback
from platform_team import TeamNotifier, break_down, tell

from airflow_provider.waiting_alert import WaitingAlert

LOCAL: dict[str, Any] = {"accelerator": "cpu", "backend": "local"}
FOLDER = Path(os.environ["AIRFLOW_HOME"])


def alert(name: str, callback: Any, **kwargs: Any) -> dict[str, Any]:
    file = str(FOLDER / f"told-{name}")
    return {
        "task_id": name,
        "waiting_alert": WaitingAlert(
            timedelta(seconds=1), AsyncCallback(callback, {"file": file, **kwargs})
        ),
    }


def same(number: int) -> int:
    return number


@dag(schedule=None, catchup=False)
def alerts():
    task.kinetic(**LOCAL, **alert("mapped", tell))(same).expand(number=[1, 2])
    text = "{{ waiting.job_id }} of {{ ti.task_id }} in {{ run_id }}: {{ waiting.reason }}"
    task.kinetic(**LOCAL, **alert("notified", TeamNotifier, text=text))(same)(3)
    task.kinetic(**LOCAL, **alert("inline", TeamNotifier, text=text), deferrable=False)(same)(4)
    task.kinetic(**LOCAL, **alert("broken", break_down))(same)(5)
    task.kinetic_batch(**LOCAL, **alert("batch", tell))(same)([6, 7])


alerts()

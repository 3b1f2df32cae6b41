"""Jobs that leave what tells whoever opens it: an object, a list of them, an exception."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

FOLDER = str(Path(os.environ.get("AIRFLOW_HOME", "."), "opened"))
TELL = """import os, pathlib, sys
told = os.environ.get("KINETIC_JOB_ID") or str(sys.argv)
pathlib.Path({!r}, str(os.getpid())).write_text(told)"""


class Canary:
    """Unpickled, it leaves a file in a folder: which job did it, or else the command of the process."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return exec, (TELL.format(self.folder),)


class CanaryError(Exception):
    """The same as an exception."""

    def __init__(self, folder: str) -> None:
        super().__init__("a canary")
        self.folder = folder

    def __reduce__(self) -> Any:
        return exec, (TELL.format(self.folder),)


def canary(folder: str) -> Canary:
    return Canary(folder)


def flock(folder: str) -> list[Any]:
    return [Canary(folder), {"another": Canary(folder)}]


def split(folder: str) -> dict[str, Any]:  # so that Airflow infers `multiple_outputs`
    return {"one": Canary(folder)}


def cry(folder: str) -> None:
    raise CanaryError(folder)


@dag(schedule=None, catchup=False)
def canaries():
    @task
    def look(single: Any, several: Any) -> list[str]:
        return [single["__kinetic_result__"], several["__kinetic_result__"]]

    kinetic = task.kinetic(accelerator="cpu", backend="local")
    look(kinetic(canary)(FOLDER), kinetic(flock)(FOLDER))
    kinetic(cry)(FOLDER)
    kinetic(split)(FOLDER)


canaries()

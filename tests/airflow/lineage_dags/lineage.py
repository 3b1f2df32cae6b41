"""Tasks whose jobs read and write data: one that succeeds, one that fails, one that is a batch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, dag, task

from kinetic_core import Data

LOCAL: dict[str, Any] = {"accelerator": "gpu-l4-2", "backend": "local"}
HERE = Path(__file__).parent


@dag(schedule=None, catchup=False)
def lineage():
    @task.kinetic(**LOCAL, outlets=[Asset("file:///models/one")])
    def train(shard: str, more: dict[str, Any]) -> int:
        Path(os.environ["KINETIC_OUTPUT_DIR"], "model").write_text(Path(shard).read_text())
        return len(more)

    @task.kinetic(**LOCAL)
    def fail() -> None:
        raise ValueError("no such shard")

    @task.kinetic_batch(**LOCAL, max_failures=1)
    def square(number: int) -> int:
        if number == 2:
            raise ValueError("two")
        Path(os.environ["KINETIC_OUTPUT_DIR"], "square").write_text(str(number * number))
        return number * number

    train(Data(str(HERE / "shard.txt")), more={"deep": [Data(str(HERE))]})
    fail()
    square((HERE / "numbers.jsonl").as_uri())


lineage()

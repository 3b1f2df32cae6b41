"""Outputs as assets: two DAGs that start when a third has made something."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Asset, AssetAlias, dag, task

MODEL = Asset("kinetic-model")
OUTPUTS = AssetAlias("kinetic-outputs")


@dag(schedule=None, catchup=False)
def producing():
    """A job that leaves a file."""

    @task.kinetic(accelerator="cpu", backend="local", outlets=[MODEL, OUTPUTS])
    def produce() -> None:
        import os
        from pathlib import Path

        Path(os.environ["KINETIC_OUTPUT_DIR"], "model.txt").write_text("five")

    produce()


@dag(schedule=[MODEL], catchup=False)
def consuming_asset():
    @task
    def read(triggering_asset_events: Any = None) -> list[Any]:
        (event,) = triggering_asset_events[MODEL]
        return [event.asset.uri, event.extra]

    read()


@dag(schedule=[OUTPUTS], catchup=False)
def consuming_alias():
    @task
    def read(triggering_asset_events: Any = None) -> list[Any]:
        (event,) = triggering_asset_events[OUTPUTS]
        return [event.asset.uri, event.extra]

    read()


producing()
consuming_asset()
consuming_alias()

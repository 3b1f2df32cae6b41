"""A DAG that jobs start which somebody else has submitted."""

from __future__ import annotations

from typing import Any

from airflow.sdk import Asset, AssetWatcher, dag, task

from airflow_provider.triggers.outputs import KineticOutputsTrigger

LEARNED = Asset(
    "kinetic://learned",
    watchers=[
        AssetWatcher(
            name="learned",
            trigger=KineticOutputsTrigger(function="learn", pattern="*.ckpt", conn_id="kinetic_watched"),
        )
    ],
)


@dag(schedule=[LEARNED], catchup=False)
def started_by_jobs():
    @task
    def read(triggering_asset_events: Any = None) -> list[Any]:
        return [event.extra["payload"] for event in triggering_asset_events[LEARNED]]

    read()


started_by_jobs()

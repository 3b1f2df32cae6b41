"""Inference over shards: each is read, scored and written by a GPU job of its own, and one job reduces them.

All shards are one task instance and one batch. Only names and counts pass through Airflow. The scores of a
shard stay where the job has left them; a small reference travels through XCom and becomes the scores again
inside the reducer.
"""

from __future__ import annotations

from array import array
from datetime import timedelta

from airflow.sdk import Param, dag, task


@dag(
    schedule=None,
    catchup=False,
    tags=["kinetic"],
    params={"shards": Param(4, type="integer", minimum=1, maximum=1000)},
)
def batch_inference():
    """Score every record of a data set, however many shards it has."""

    @task
    def list_shards(params: dict[str, int]) -> list[int]:
        """In real life: the objects of a bucket."""
        return list(range(params["shards"]))

    @task.kinetic_batch(
        accelerator="gpu-l4",
        spot=True,
        retries=2,  # each runs only the shards without scores
        retry_delay=timedelta(minutes=1),
        max_concurrent=50,  # at most fifty GPUs at once; the other shards wait in the cluster
    )
    def score(shard: int) -> array[float]:
        """The scores of a shard's records. XCom cannot carry an array, and does not have to."""
        import math

        records = range(shard * 1000, (shard + 1) * 1000)
        print(f"shard {shard}: scoring {len(records)} records", flush=True)
        return array("d", (1.0 / (1.0 + math.exp(-math.sin(record))) for record in records))

    @task.kinetic(accelerator="cpu")
    def reduce(shards: list[array[float]]) -> dict[str, float]:
        """Gets the arrays themselves, from job to job, past Airflow's processes and its database."""
        scores = [each for shard in shards for each in shard]
        return {"records": len(scores), "mean": sum(scores) / len(scores), "highest": max(scores)}

    reduce(score(list_shards()))


batch_inference()

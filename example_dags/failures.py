"""Two jobs that fail: one that a second attempt mends, and one that nothing does.

Look at both in Airflow's UI: the tab *Kinetic* of a task has the traceback of the function, the log of each
attempt and the time that each took.
"""

from __future__ import annotations

from airflow.sdk import dag, task


@dag(schedule=None, catchup=False, tags=["kinetic"])
def failures():
    """What Kinetic and Airflow do when a function raises."""

    @task.kinetic(accelerator="cpu", backend="local", job_retries=1)
    def stumble() -> str:
        """Fail at the first attempt; the job starts another, in the same try of the task."""
        import os

        if os.environ["KINETIC_FAILED_COUNT"] == "0":
            raise ConnectionError("the first connection of the day was refused")
        return "the second attempt was better"

    @task.kinetic(accelerator="cpu", backend="local")
    def read_shard(number: int) -> None:
        """Fail for good: the task ends with the function's own exception."""
        print(f"reading shard {number}")
        raise ValueError(f"shard {number} is corrupt")

    stumble()
    read_shard(3)


failures()

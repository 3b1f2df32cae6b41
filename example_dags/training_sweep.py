"""A sweep: every combination of hyperparameters is trained on a GPU of its own, and the best one wins.

`grid` says what to try, `train.expand_kwargs` makes a job of every combination, `choose` compares them. A
combination that fails is retried by itself, and the others do not wait for it. With `KINETIC_BACKEND=local`
the same file runs on this machine: the model is small enough.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import Any

from airflow.sdk import Param, dag, task


@dag(
    schedule=None,
    catchup=False,
    tags=["kinetic"],
    params={"rates": Param([0.03, 0.3], type="array"), "epochs": Param(20, type="integer", minimum=1)},
)
def training_sweep():
    """Which learning rate and which momentum fit best?"""

    @task
    def grid(params: dict[str, Any]) -> list[dict[str, Any]]:
        """The combinations; start the DAG with other parameters to search elsewhere."""
        return [
            {"rate": rate, "momentum": momentum, "epochs": params["epochs"]}
            for rate, momentum in product(params["rates"], [0.0, 0.9])
        ]

    @task.kinetic(
        accelerator="gpu-l4",
        retries=2,
        retry_delay=timedelta(minutes=1),
        map_index_template="rate {{ task.op_kwargs['rate'] }}, momentum {{ task.op_kwargs['momentum'] }}",
    )
    def train(rate: float, momentum: float, epochs: int) -> dict[str, float]:
        """Fit a line to noisy points; what it prints is in the task's log while it runs."""
        from math import sin

        # "Noise" that is the same for everybody, or the comparison means nothing.
        points = [(x / 50, 2.0 * x / 50 - 1.0 + 0.1 * sin(57 * x)) for x in range(-50, 51)]
        slope = offset = push_slope = push_offset = loss = 0.0
        for epoch in range(epochs):
            errors = [slope * x + offset - y for x, y in points]
            loss = sum(error * error for error in errors) / len(points)
            print(f"epoch {epoch}: loss {loss:.4f}", flush=True)
            push_slope = momentum * push_slope - rate * sum(
                error * x for error, (x, _) in zip(errors, points, strict=True)
            ) / len(points)
            push_offset = momentum * push_offset - rate * sum(errors) / len(points)
            slope, offset = slope + push_slope, offset + push_offset
        return {"rate": rate, "momentum": momentum, "loss": loss}

    @task
    def choose(trials: list[dict[str, float]]) -> dict[str, float]:
        """The one with the smallest loss."""
        return min(trials, key=lambda trial: trial["loss"])

    choose(train.expand_kwargs(grid()))


training_sweep()

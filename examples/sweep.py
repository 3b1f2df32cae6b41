# /// script
# dependencies = ["numpy"]
# ///
"""A sweep: one job for each setting, a few at a time, and what is known when some of them fail.

    python examples/sweep.py

In Airflow the same is `train.expand(rate=[...])`.
"""

from __future__ import annotations

import itertools

import kinetic_core


@kinetic_core.run(accelerator="cpu", timeout=600)
def train(rate: float, momentum: float, steps: int = 200) -> float:
    """Fit a line to noisy points by gradient descent; the loss on points that were not used."""
    import numpy as np

    generator = np.random.default_rng(0)
    x = generator.normal(size=(400, 3))
    y = x @ np.array([2.0, -1.0, 0.5]) + generator.normal(0, 0.1, 400)
    weights, speed = np.zeros(3), np.zeros(3)
    for _ in range(steps):
        speed = momentum * speed - rate * 2 * x[:300].T @ (x[:300] @ weights - y[:300]) / 300
        weights = weights + speed
    loss = float(np.mean((x[300:] @ weights - y[300:]) ** 2))
    if not np.isfinite(loss) or loss > 1e3:
        raise FloatingPointError(f"rate {rate} with momentum {momentum} diverges")
    return loss


def sweep() -> dict[str, dict[str, float] | list[int]]:
    """The best setting, and which ones have no loss."""
    settings = [
        {"rate": rate, "momentum": momentum}
        for rate, momentum in itertools.product([0.001, 0.1, 1.5], [0.0, 0.9])
    ]
    batch = train.run_async_map(settings, max_concurrent=4, name="rates")
    try:
        losses = batch.results()
    except kinetic_core.BatchError as error:
        print(error)
        losses = error.partial_results
    found = [(loss, setting) for loss, setting in zip(losses, settings, strict=True) if loss is not None]
    loss, best = min(found, key=lambda each: each[0])
    return {"best": {**best, "loss": loss}, "failed": [i for i, each in enumerate(losses) if each is None]}


if __name__ == "__main__":
    print(sweep())

"""The public API as a user's type checker sees it. Checked by mypy --strict, never run."""

from __future__ import annotations

from typing import assert_type

import kinetic_core


@kinetic_core.run(accelerator="cpu", backend="local", memory="1Gi", retries=2)
def train(steps: int, *, rate: float = 0.1) -> float:
    return steps * rate


class Model:
    @kinetic_core.run(accelerator=["tpu-v6e-8", "cpu"], capacity_timeout=60, budget=2.5)
    def fit(self, epochs: int) -> str:
        return "x" * epochs


assert_type(train(3, rate=0.5), float)
assert_type(train.run_async(3), kinetic_core.JobHandle)
assert_type(train.run_async_map([1, 2]), kinetic_core.BatchHandle)
assert_type(Model().fit(2), str)
assert_type(kinetic_core.attach("job-0123456789abcdef"), kinetic_core.JobHandle)
assert_type(kinetic_core.list_jobs(), list[kinetic_core.JobHandle])

train("three")  # type: ignore[arg-type]
train.run_async(3, speed=1)  # type: ignore[call-arg]

"""Money that a call may cost: refused without prices, and kept by the job itself."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core import BatchError
from kinetic_core._runner.wire import FailureClass
from kinetic_core.errors import ConfigurationError, JobBudgetExceeded

SECONDS = 3600.0
"""Costs one a second: a budget is then in seconds."""


@pytest.fixture
def prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    table = tmp_path / "prices.toml"
    table.write_text(f'currency = "EUR"\n[on_demand]\ncpu = {SECONDS}\n')
    monkeypatch.setenv("KINETIC_PRICES", str(table))
    return table


@kinetic_core.run(accelerator="cpu", budget=3, retries=5)
def fails_once_then_rests(x: int) -> int:
    if x and os.environ["KINETIC_FAILED_COUNT"] == "0":
        time.sleep(0.2)
        raise ValueError(x)
    if x:
        time.sleep(600)
    return x


@pytest.mark.promise("command: … or cancels")
def test_the_job_ends_itself_when_its_attempts_have_cost_it(prices: Path, local_jobs: Path) -> None:
    handle = fails_once_then_rests.run_async(1)
    with pytest.raises(
        JobBudgetExceeded, match=r"EUR of budget=3: \d s of cpu at 3600 EUR .*, in 2 attempts"
    ) as raised:
        handle.result(cleanup=False)
    failure = raised.value.failure
    assert failure is not None
    assert failure.failure_class == FailureClass.BUDGET
    handle.cleanup()


def test_of_a_map_it_is_what_each_input_may_cost(prices: Path, local_jobs: Path) -> None:
    batch = fails_once_then_rests.run_async_map([0, 1])
    with pytest.raises(BatchError) as raised:
        batch.results()
    assert raised.value.partial_results[0] == 0
    assert isinstance(raised.value.exceptions[1], JobBudgetExceeded)


@pytest.mark.promise("command: `run(budget=…)` refuses")
def test_without_a_price_nothing_is_stored(
    tmp_path: Path, prices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_BACKEND", "local")
    on_tpu = kinetic_core.run(accelerator="tpu-v6e-8", budget=3)
    with pytest.raises(ConfigurationError, match=rf"price of tpu-v6e-8: add it to \[on_demand\] of {prices}"):
        on_tpu(lambda: 1)()
    monkeypatch.delenv("KINETIC_PRICES")
    with pytest.raises(ConfigurationError, match="KINETIC_PRICES"):
        fails_once_then_rests.run_async(1)
    assert not (tmp_path / "kinetic").exists()

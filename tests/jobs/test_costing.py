"""What a job used is what its phases say, and money only what the user's own table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.errors import ConfigurationError, InvalidRequest
from kinetic_core.job import Budget
from kinetic_core.jobs.cost import Usage, hourly_cost, priced_budget, read_prices, usage_in
from kinetic_core.jobs.phases import PHASES, USES
from kinetic_core.settings import Settings

TABLE = """
currency = "EUR"
[on_demand]
v5litepod = 2
cpu = 0.5
[spot]
tpu-v5e = 0.8
"""


def usage(accelerator: str, units: int, **seconds: float) -> Usage:
    return Usage("job", parse_accelerator(accelerator), units, dict.fromkeys(USES, 0.0) | seconds)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(TABLE)
    return path


@pytest.mark.promise("command: Cost: accelerator-seconds by phase")
def test_every_phase_that_explain_knows_counts_as_something() -> None:
    spent = usage_in("job", "cpu", ((name, 1.0) for name in PHASES)).seconds
    assert sum(spent.values()) == len(PHASES)
    assert tuple(spent) == USES


def test_attempts_add_up_and_waiting_between_them_holds_nothing() -> None:
    lived = [("queue", 5), ("image", 3), ("function", 10), ("replacement", 4), ("start", 2), ("function", 20)]
    job = usage_in("job", "tpu-v5e-8", lived)
    assert job.seconds == {"waiting": 9, "pulling": 3, "installing": 2, "running": 30, "idle": 0}
    assert job.unit_seconds == {"pulling": 24, "installing": 16, "running": 240, "idle": 0}


def test_money_is_of_chips_and_hours_held(table: Path) -> None:
    prices = read_prices(table)
    assert prices.currency == "EUR"
    assert prices.cost(usage("tpu-v5e-8", 8, waiting=9999, running=1800)) == 8
    assert prices.cost(usage("tpu-v5e-8:spot", 8, running=1800)) == pytest.approx(3.2)
    assert prices.cost(usage("cpu:4", 4, pulling=1800, idle=1800)) == 2


def test_what_has_no_price_costs_nobody_knows_what(table: Path) -> None:
    prices = read_prices(table)
    assert prices.cost(usage("gpu-l4", 1, running=60)) is None
    assert prices.cost(usage("tpu-v5p-8:spot", 8, running=60)) is None


def test_what_an_hour_costs(table: Path) -> None:
    """A price that is not known keeps no job from running."""
    priced = Settings(prices=str(table))
    assert hourly_cost("tpu-v5e-8", priced) == "16 EUR an hour"
    assert hourly_cost("tpu-v5e-8:spot", priced) == "6.4 EUR an hour"
    assert hourly_cost("gpu-l4", priced) == hourly_cost("tpu-v5e-8", Settings()) == ""
    table.write_text("currency = ")
    assert hourly_cost("cpu", priced).startswith("an unknown price: the price table ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("currency = ", "cannot be read"),
        ("[on_demand]\ncpu = 1", "currency must be a text"),
        ('currency = "EUR"\n[hourly]\ncpu = 1', "'hourly' is unknown"),
        ('currency = "EUR"\non_demand = 1', "must be a table"),
        ('currency = "EUR"\n[spot]\ntpu-v99 = 1', r"\[spot\] tpu-v99: .*tpu-v99"),
        ('currency = "EUR"\n[spot]\ncpu = -1', r"\[spot\] cpu = -1 must be a number"),
        ('currency = "EUR"\n[spot]\ncpu = nan', "must be a number"),
        ('currency = "EUR"\n[spot]\ncpu = true', "must be a number"),
        ('currency = "EUR"\n[spot]\ngpu-l4 = 1\nl4 = 2', "l4 has a price already"),
    ],
)
def test_a_wrong_table_is_refused_by_file_and_key(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=said) as raised:
        read_prices(path)
    assert str(path) in str(raised.value)


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"absent.toml cannot be read"):
        read_prices(tmp_path / "absent.toml")


def budget_of(amount: float, table: Path | str, *accelerators: str) -> Budget:
    return priced_budget(amount, map(parse_accelerator, accelerators), Settings(prices=str(table)))


def test_a_budget_knows_what_each_choice_costs_as_a_whole(table: Path) -> None:
    budget = budget_of(5, table, "tpu-v5e-16", "tpu-v5e-8:spot", "cpu:4", "cpu")
    assert (budget.amount, budget.currency) == (5, "EUR")
    assert list(budget.hourly.values()) == pytest.approx([32, 6.4, 2, 0.5])
    assert list(budget.hourly) == ["tpu-v5e-16", "tpu-v5e-8:spot", "cpu:4", "cpu"]


def test_without_a_price_there_is_no_budget(table: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"budget=5 .*name your price table in KINETIC_PRICES"):
        budget_of(5, "", "cpu")
    missing = r"price of gpu-l4-1:spot: add it to \[spot\] of .*prices.toml.*KINETIC_PRICES"
    with pytest.raises(ConfigurationError, match=missing):
        budget_of(5, table, "cpu", "gpu-l4:spot")


@pytest.mark.promise("command: `run(budget=…)` refuses")
def test_a_budget_that_pays_for_nothing_is_refused(table: Path) -> None:
    with pytest.raises(
        InvalidRequest, match=r"budget=0.0001 EUR does not pay for a second of cpu, at 0.5 EUR"
    ):
        budget_of(0.0001, table, "cpu")

"""Usage of jobs: seconds of hardware by phase of use, and money where the user gives prices.

No price is built in. A price table is the user's own TOML file; see `read_prices`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kinetic_core.accelerators.grammar import Accelerator, parse_accelerator
from kinetic_core.backends.base import Backend
from kinetic_core.errors import ConfigurationError, InvalidAccelerator, InvalidRequest
from kinetic_core.job import Budget, JobReference
from kinetic_core.jobs.fallback import accelerator_now
from kinetic_core.jobs.phases import PHASES, USES
from kinetic_core.jobs.timeline import explain
from kinetic_core.settings import Settings

_TABLES = ("on_demand", "spot")
UNITS = ("chip", "core")
"""Units in which hardware is counted. Seconds of the one and of the other are never added up."""


@dataclass(frozen=True)
class Usage:
    """Usage of one job so far. `units` are chips of the whole slice, or cores without accelerator.

    `cost` is what that costs, in the `currency` of the settings' price table; None without a price.
    """

    job_id: str
    accelerator: Accelerator
    units: int
    seconds: Mapping[str, float]
    """Seconds by use, in the order of `USES`; a use that took no time is 0."""
    cost: float | None = None
    currency: str = ""

    @property
    def unit(self) -> str:
        """Return what the units are: `chip`, or `core` of a job without accelerator."""
        return UNITS[0 if self.accelerator.chips else 1]

    @property
    def unit_seconds(self) -> dict[str, float]:
        """Return the seconds of one chip or core by use; waiting uses none."""
        return {use: self.units * self.seconds[use] for use in USES[1:]}

    @property
    def held(self) -> float:
        """Return the seconds of one chip or core, over all uses."""
        return sum(self.unit_seconds.values())

    def _repr_html_(self) -> str:
        from kinetic_core.notebook import usage_html

        return usage_html(self)


@dataclass(frozen=True)
class Prices:
    """Price table: the price of one chip or core for an hour, by provisioning and family of accelerators."""

    currency: str
    on_demand: Mapping[tuple[str, str], float]
    spot: Mapping[tuple[str, str], float]

    def cost(self, usage: Usage) -> float | None:
        """Return the cost of a job so far, None if the table has no price for the job's hardware."""
        one = usage.accelerator
        price = self.of(one)
        return None if price is None else price * usage.held / 3600

    def of(self, one: Accelerator) -> float | None:
        """Return the price of one chip or core for an hour, None if the table has none."""
        return (self.spot if one.spot else self.on_demand).get((one.kind, one.family))


def usage_of(backend: Backend, reference: JobReference) -> Usage:
    """Compute a job's usage from its Kubernetes objects and from what its runner recorded."""
    told = ((phase.name, phase.seconds) for phase in explain(backend, reference).phases)
    accelerator = accelerator_now(backend, reference)
    return usage_in(reference.job_id, accelerator, told)


def priced(usage: Usage, settings: Settings) -> Usage:
    """Add what the usage costs by the settings' price table. Raises ConfigurationError."""
    prices = known_prices(settings)
    return usage if prices is None else replace(usage, cost=prices.cost(usage), currency=prices.currency)


def usage_in(job_id: str, accelerator: str, phases: Iterable[tuple[str, float]]) -> Usage:
    """Compute a job's usage from the names and seconds of its phases, ignoring unknown names.

    Raises InvalidAccelerator.
    """
    one = parse_accelerator(accelerator)
    seconds = dict.fromkeys(USES, 0.0)
    for name, lasted in phases:
        if name in PHASES:
            seconds[PHASES[name].use] += lasted
    return Usage(job_id, one, _units(one), seconds)


def priced_budget(amount: float, choices: Iterable[Accelerator], settings: Settings) -> Budget:
    """Return a job's budget, with the hourly price of each accelerator the job may run on.

    Raises ConfigurationError if the price table or a price is missing, InvalidRequest if `amount` pays for
    less than a second.
    """
    prices = known_prices(settings)
    if prices is None:
        raise ConfigurationError(
            f"budget={amount:g} needs to know what the accelerator costs: name your price table in "
            "KINETIC_PRICES, see docs/guides/costs.md"
        )
    hourly = {str(one): _hourly(one, prices, settings.prices) for one in choices}
    for accelerator, price in hourly.items():
        if amount < price / 3600:
            raise InvalidRequest(
                f"budget={amount:g} {prices.currency} does not pay for a second of {accelerator}, at "
                f"{price:g} {prices.currency} an hour; give more"
            )
    return Budget(amount, prices.currency, hourly)


def hourly_cost(accelerator: str, settings: Settings) -> str:
    """Return the price of an accelerator while a job holds it, such as `4.8 EUR an hour`.

    "" without a price table, or without a price in it. For a table that cannot be read, `an unknown price`
    and why: that keeps no job from running.
    """
    try:
        prices = known_prices(settings)
    except ConfigurationError as error:
        return f"an unknown price: {error}"
    one = parse_accelerator(accelerator)
    price = None if prices is None else prices.of(one)
    if prices is None or price is None:
        return ""
    return f"{price * _units(one):g} {prices.currency} an hour"


def known_prices(settings: Settings) -> Prices | None:
    """Return the price table that the settings name, None if they name none. Raises ConfigurationError."""
    return read_prices(Path(settings.prices)) if settings.prices else None


def read_prices(file: Path) -> Prices:
    """Read a price table from TOML: `currency`, and tables `[on_demand]` and `[spot]` of prices.

    A price is that of one chip for an hour (for `cpu`, of one core). Accelerators are named as in
    `accelerator=`, without a size: `tpu-v5e`, `gpu-l4`. Raises ConfigurationError, naming file and key.
    """
    try:
        told = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigurationError(f"the price table {file} cannot be read: {exc}") from exc
    if unknown := sorted(set(told) - {"currency", *_TABLES}):
        raise ConfigurationError(
            f"the price table {file}: {unknown[0]!r} is unknown; it has currency, [on_demand] and [spot]"
        )
    currency = told.get("currency")
    if not isinstance(currency, str) or not currency:
        raise ConfigurationError(f'the price table {file}: currency must be a text, such as "EUR"')
    on_demand, spot = (_table(file, name, told.get(name, {})) for name in _TABLES)
    return Prices(currency, on_demand, spot)


def _units(accelerator: Accelerator) -> int:
    return accelerator.chips or accelerator.cpu_count or 1


def _hourly(accelerator: Accelerator, prices: Prices, file: str) -> float:
    """Return the price of all chips of an accelerator for an hour."""
    price = prices.of(accelerator)
    if price is None:
        table = "spot" if accelerator.spot else "on_demand"
        raise ConfigurationError(
            f"budget= needs the price of {accelerator}: add it to [{table}] of {file}, the price table that "
            "KINETIC_PRICES names"
        )
    return price * _units(accelerator)


def _table(file: Path, table: str, told: Any) -> dict[tuple[str, str], float]:
    if not isinstance(told, dict):
        raise ConfigurationError(f"the price table {file}: {table} must be a table, [{table}]")
    found: dict[tuple[str, str], float] = {}
    for name, price in told.items():
        where = f"the price table {file}: [{table}] {name}"
        try:
            one = parse_accelerator(name)
        except InvalidAccelerator as exc:
            raise ConfigurationError(f"{where}: {exc}") from exc
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < float("inf"):
            raise ConfigurationError(f"{where} = {price!r} must be a number: a chip's price for an hour")
        if (one.kind, one.family) in found:
            raise ConfigurationError(f"{where} has a price already, under another name")
        found[one.kind, one.family] = float(price)
    return found

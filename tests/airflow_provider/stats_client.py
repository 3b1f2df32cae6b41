"""What stands in for Airflow's stats."""

from __future__ import annotations

from types import ModuleType
from typing import Any


class Client(ModuleType):
    """Airflow's stats module, as far as it is used; it keeps what it gets."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.got: list[tuple[Any, ...]] = []

    def incr(self, stat: str, count: int = 1, rate: float = 1, *, tags: dict[str, str]) -> None:
        self.got.append((stat, count, tags))

    def gauge(
        self, stat: str, value: int, rate: float = 1, delta: bool = False, *, tags: dict[str, str]
    ) -> None:
        self.got.append((stat, value, tags))

    def timing(self, stat: str, dt: Any, *, tags: dict[str, str]) -> None:
        self.got.append((stat, dt.total_seconds(), tags))

    def of(self, name: str) -> list[tuple[Any, dict[str, str]]]:
        """The values and tags of a metric, as they came."""
        return [(value, tags) for stat, value, tags in self.got if stat == name]

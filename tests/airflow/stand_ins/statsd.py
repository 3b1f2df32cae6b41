"""Stands in for the StatsD library that Airflow sends metrics with: lines in a file instead of packets."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any


class _Timer:
    """Times nothing: no metric of ours is timed in a block."""

    def start(self) -> None:
        pass

    def stop(self, send: bool = True) -> None:
        pass


class StatsClient:
    """As much of the library's client as Airflow uses."""

    def __init__(self, host: str, port: int, prefix: str, ipv6: bool) -> None:
        self._prefix = prefix

    def incr(self, stat: str, count: int = 1, rate: float = 1) -> None:
        self._write(stat, count)

    decr = incr

    def gauge(self, stat: str, value: float, rate: float = 1, delta: bool = False) -> None:
        self._write(stat, value)

    def timing(self, stat: str, delta: timedelta | float) -> None:
        seconds = delta.total_seconds() if isinstance(delta, timedelta) else delta / 1000
        self._write(stat, seconds)

    def timer(self, *_: Any) -> _Timer:
        return _Timer()

    def _write(self, stat: str, value: float) -> None:
        if ".kinetic" not in f"{self._prefix}.{stat}":
            return
        line = f"{self._prefix}.{stat} {value}\n".encode()
        file = os.open(os.environ["KINETIC_TEST_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, line)
        finally:
            os.close(file)

"""Sizes in bytes as people read them."""

from __future__ import annotations

_UNITS = ("KiB", "MiB", "GiB", "TiB")


def shown_size(count: int) -> str:
    """Return a number of bytes with its unit and three digits: `256 KiB`, `1.5 GiB`."""
    if count < 1024:
        return f"{count} byte{'' if count == 1 else 's'}"
    value, units = count / 1024, list(_UNITS)
    while _rounded(value) >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{_rounded(value):g} {units[0]}" if value < 1000 else f"{value:.0f} {units[0]}"


def _rounded(value: float) -> float:
    return round(value, 2 if value < 10 else 1 if value < 100 else 0)

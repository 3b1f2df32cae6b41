"""Sizes in bytes as people read them."""

import pytest

from kinetic_core._runner.sizes import shown_size


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (262144, "256 KiB"),  # a quarter of a MiB is not "0 MiB"
        ((1 << 20) - 1, "1 MiB"),
        (1 << 20, "1 MiB"),
        (3 << 19, "1.5 MiB"),
        (160 << 20, "160 MiB"),
        (1000 << 20, "1000 MiB"),
        (int(1.98 * (1 << 30)), "1.98 GiB"),
        (int(31.8 * (1 << 30)), "31.8 GiB"),
        (5 << 50, "5120 TiB"),
    ],
)
def test_a_size_has_the_unit_that_suits_it(count: int, shown: str) -> None:
    assert shown_size(count) == shown

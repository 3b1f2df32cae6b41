"""What tests of batches that share Jobs are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.testing import kubelet as behaviours
from kinetic_core.testing.kubelet import Behave
from tests.batches.places import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Any]:
    opened: list[Place] = []

    def make(behave: Behave = lambda _: behaviours.stays_pending(), **options: Any) -> Place:
        opened.append(Place(tmp_path, behave, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()

"""The colours of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

import airflow_provider.ui
from kinetic_core.jobs.phases import PHASES

STATIC = Path(airflow_provider.ui.__file__).parent / "static"


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_has_a_colour_of_its_own(phase: str) -> None:
    """A bar of several grey stretches tells nobody where the time went."""
    assert f'  "{phase}",\n' in (STATIC / "timeline.mjs").read_text()
    rules = [line for line in (STATIC / "page.css").read_text().splitlines() if line.startswith(".cause-")]
    (own,) = (rule for rule in rules if rule.startswith(f".cause-{phase} "))
    colour = own.partition("{")[2]
    others = [rule for rule in rules if rule.endswith(colour) and rule != own]
    assert phase == "unknown" or others == []

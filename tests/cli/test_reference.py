"""The reference pages are what the command says of itself now."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetic_core.cli.reference import pages

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.promise("command: API and CLI reference generated from the code")
def test_the_reference_is_current() -> None:
    for name, content in pages().items():
        assert (FOLDER / name).read_text() == content, (
            "run: python -m kinetic_core.cli.reference docs/reference"
        )

"""What tests of stored projects and data share."""

from pathlib import Path

import pytest

from tests.project.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A project in a place of its own."""
    return World(tmp_path)

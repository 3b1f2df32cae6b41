"""One error of every class there is."""

from __future__ import annotations

from kinetic_core import errors
from kinetic_core.errors import ImageBuilding, KineticError


def every_error() -> list[KineticError]:
    """With the message "why"."""
    kinds = [each for each in vars(errors).values() if isinstance(each, type)]
    assert len(kinds) > 30
    return [kind("why", {}) if kind is ImageBuilding else kind("why") for kind in kinds]

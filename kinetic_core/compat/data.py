"""`Data`."""

from __future__ import annotations

from kinetic_core.data.data import Data

__all__ = ["Data"]

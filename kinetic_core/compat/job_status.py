"""`JobStatus`. A job of this package is never `CANCELLED`: it is `NOT_FOUND` then, as in keras-kinetic."""

from __future__ import annotations

from kinetic_core.job import JobStatus

__all__ = ["JobStatus"]

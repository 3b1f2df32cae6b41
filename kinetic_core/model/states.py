"""The states a job can be seen in, and which of them are final."""

from __future__ import annotations

from enum import Enum


class JobStatus(Enum):
    """Observable status of a job.

    A cancelled job and a job past its deadline are FAILED: they ended without a value. The
    observation's failure class says which.
    """

    PENDING = "PENDING"
    """Created, not running: waiting for a queue, a slot, a node or an image."""

    RUNNING = "RUNNING"
    """Its runner has started. A restart after a lost node returns it to PENDING."""

    SUCCEEDED = "SUCCEEDED"
    """Final: the function returned and its value is committed."""

    FAILED = "FAILED"
    """Final: no further attempt will be made."""

    NOT_FOUND = "NOT_FOUND"
    """Neither the backend nor the object store knows the job."""

    @property
    def is_terminal(self) -> bool:
        """Whether no later status can follow."""
        return self in TERMINAL


TERMINAL = frozenset({JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.NOT_FOUND})

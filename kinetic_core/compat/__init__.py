"""Names and life cycle of keras-kinetic, for programs that move: `import kinetic_core.compat as kinetic`.

What it does is done by `kinetic_core`. Only names and the life of a job are those of keras-kinetic: a job
that was cancelled or collected is `NOT_FOUND`, `cleanup()` ends what runs, `list_jobs()` has what Kubernetes
still has.
[The guide](../migration/keras-kinetic.md) has every difference that remains.
"""

from __future__ import annotations

from kinetic_core import __version__ as __version__
from kinetic_core.compat import collections, credentials, data, debug, job_status, jobs
from kinetic_core.compat.collections import BatchError, BatchHandle, attach_batch
from kinetic_core.compat.data import Data
from kinetic_core.compat.decorator import RemoteCallable, run
from kinetic_core.compat.jobs import JobHandle, attach, list_jobs

__all__ = [
    "BatchError",
    "BatchHandle",
    "Data",
    "JobHandle",
    "RemoteCallable",
    "__version__",
    "attach",
    "attach_batch",
    "collections",
    "credentials",
    "data",
    "debug",
    "job_status",
    "jobs",
    "list_jobs",
    "run",
]

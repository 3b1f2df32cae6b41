"""Run any Python function on a cloud TPU or GPU, from a plain script or an Airflow DAG.

    import kinetic_core

    @kinetic_core.run(accelerator="tpu-v6e-8")
    def train(): ...

    loss = train()               # runs as a job, prints its log, returns its value
    handle = train.run_async()   # returns at once; kinetic_core.attach(handle.job_id) finds it again

Importing this changes nothing: no logging set-up, no environment, no network, and neither Airflow nor
a cloud library is imported.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kinetic_core.batch.errors import BatchError as BatchError
    from kinetic_core.batch.fan_out import attach_batch as attach_batch
    from kinetic_core.batch.handle import BatchHandle as BatchHandle
    from kinetic_core.data.data import Data as Data
    from kinetic_core.errors import KineticError as KineticError
    from kinetic_core.executor.callable import RemoteCallable as RemoteCallable
    from kinetic_core.executor.run import run as run
    from kinetic_core.image.publishing import build_image as build_image
    from kinetic_core.lifecycle.discovery import attach as attach
    from kinetic_core.lifecycle.discovery import list_jobs as list_jobs
    from kinetic_core.lifecycle.handle import JobHandle as JobHandle
    from kinetic_core.lifecycle.references import ResultReference as ResultReference
    from kinetic_core.model.states import JobStatus as JobStatus

__version__ = "0.1.0"

_HOMES = {
    "BatchError": "kinetic_core.batch.errors",
    "BatchHandle": "kinetic_core.batch.handle",
    "Data": "kinetic_core.data.data",
    "JobHandle": "kinetic_core.lifecycle.handle",
    "JobStatus": "kinetic_core.model.states",
    "KineticError": "kinetic_core.errors",
    "RemoteCallable": "kinetic_core.executor.callable",
    "ResultReference": "kinetic_core.lifecycle.references",
    "attach": "kinetic_core.lifecycle.discovery",
    "attach_batch": "kinetic_core.batch.fan_out",
    "build_image": "kinetic_core.image.publishing",
    "list_jobs": "kinetic_core.lifecycle.discovery",
    "run": "kinetic_core.executor.run",
}

__all__ = [
    "BatchError",
    "BatchHandle",
    "Data",
    "JobHandle",
    "JobStatus",
    "KineticError",
    "RemoteCallable",
    "ResultReference",
    "__version__",
    "attach",
    "attach_batch",
    "build_image",
    "list_jobs",
    "run",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that importing the package costs little."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))

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

    from kinetic_core.batches.handle import BatchError as BatchError
    from kinetic_core.batches.handle import BatchHandle as BatchHandle
    from kinetic_core.cells import load_ipython_extension as load_ipython_extension
    from kinetic_core.client import Client as Client
    from kinetic_core.client import attach as attach
    from kinetic_core.client import attach_batch as attach_batch
    from kinetic_core.client import build_image as build_image
    from kinetic_core.client import default_client as default_client
    from kinetic_core.client import list_jobs as list_jobs
    from kinetic_core.data.data import Data as Data
    from kinetic_core.decorator import RemoteCallable as RemoteCallable
    from kinetic_core.decorator import run as run
    from kinetic_core.errors import KineticError as KineticError
    from kinetic_core.instances import cls as cls
    from kinetic_core.job import JobStatus as JobStatus
    from kinetic_core.jobs.handle import JobHandle as JobHandle
    from kinetic_core.jobs.references import ResultReference as ResultReference
    from kinetic_core.settings import Settings as Settings

__version__ = "0.1.0"

_HOMES = {
    "BatchError": "kinetic_core.batches.handle",
    "BatchHandle": "kinetic_core.batches.handle",
    "Client": "kinetic_core.client",
    "Data": "kinetic_core.data.data",
    "JobHandle": "kinetic_core.jobs.handle",
    "JobStatus": "kinetic_core.job",
    "KineticError": "kinetic_core.errors",
    "RemoteCallable": "kinetic_core.decorator",
    "ResultReference": "kinetic_core.jobs.references",
    "Settings": "kinetic_core.settings",
    "attach": "kinetic_core.client",
    "attach_batch": "kinetic_core.client",
    "build_image": "kinetic_core.client",
    "cls": "kinetic_core.instances",
    "default_client": "kinetic_core.client",
    "list_jobs": "kinetic_core.client",
    "load_ipython_extension": "kinetic_core.cells",
    "run": "kinetic_core.decorator",
}

__all__ = [
    "BatchError",
    "BatchHandle",
    "Client",
    "Data",
    "JobHandle",
    "JobStatus",
    "KineticError",
    "RemoteCallable",
    "ResultReference",
    "Settings",
    "__version__",
    "attach",
    "attach_batch",
    "build_image",
    "cls",
    "default_client",
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

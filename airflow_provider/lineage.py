"""Lineage for OpenLineage: what a task's job read and wrote, on which hardware, and what it cost.

Imported only when the OpenLineage provider asks an operator for it, in a worker that ends a task (ADR 0065).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from typing import Any, TypeAlias
from urllib.parse import unquote

from airflow.providers.common.compat.openlineage.facet import (
    Dataset,
    OutputDataset,
    OutputStatisticsOutputDatasetFacet,
    RunFacet,
)
from airflow.providers.openlineage import conf
from airflow.providers.openlineage.extractors import OperatorLineage
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from attr import define, field
from openlineage.client.facet_v2 import source_code_job

from airflow_provider.records import JobRecord
from kinetic_core.backends.base import Backend, backend_of
from kinetic_core.connections import Connections
from kinetic_core.data.data import Data
from kinetic_core.data.locations import gcs_location
from kinetic_core.errors import KineticError
from kinetic_core.job import JobReference
from kinetic_core.jobs.cost import known_prices, usage_in
from kinetic_core.jobs.fallback import accelerator_now
from kinetic_core.jobs.outputs import count_batch_outputs, find_outputs

Lineage: TypeAlias = OperatorLineage[Any, Any]
_LOG = logging.getLogger(__name__)
_NO_OUTPUTS = "the outputs of %s are not in its lineage: %s"
_PAGE = "https://pypi.org/project/airflow-provider-kinetic"
_FILE, _GCS, _HUB = "file", "gs://", "hf://huggingface.co"
"""Namespaces of datasets; a bucket's is `gs://` and its name."""


@define
class KineticJobRunFacet(RunFacet):
    """Job of a task: where and how it ran, the seconds of its phases, and its cost.

    `chipSeconds` and `coreSeconds` count one chip or one core, over the time in which the job held its
    hardware; one of the two is 0. `cost` is None where no price is known.
    """

    jobId: str  # noqa: N815  OpenLineage's names are so
    backend: str
    cluster: str
    namespace: str
    accelerator: str
    image: str
    status: str
    failureClass: str  # noqa: N815
    attempts: int
    phases: dict[str, float]
    chipSeconds: float = field(default=0.0)  # noqa: N815
    coreSeconds: float = field(default=0.0)  # noqa: N815
    cost: float | None = field(default=None)
    currency: str | None = field(default=None)

    @staticmethod
    def _get_schema() -> str:
        return _schema("KineticJobRunFacet")


@define
class KineticBatchRunFacet(RunFacet):
    """Batch of a task: where it ran, how many inputs it had, how many have no value, and its cost.

    `runSeconds` is the time for which the attempts of its inputs ran, added up: on warm workers, that of the
    workers' lanes. None if it is not known. `chipSeconds`, `coreSeconds` and `cost` are those of that time,
    as in KineticJobRunFacet.
    """

    batchId: str  # noqa: N815
    backend: str
    cluster: str
    namespace: str
    accelerator: str
    image: str
    inputs: int
    failed: int | None
    runSeconds: float | None = field(default=None)  # noqa: N815
    chipSeconds: float = field(default=0.0)  # noqa: N815
    coreSeconds: float = field(default=0.0)  # noqa: N815
    cost: float | None = field(default=None)
    currency: str | None = field(default=None)

    @staticmethod
    def _get_schema() -> str:
        return _schema("KineticBatchRunFacet")


def _schema(name: str) -> str:
    return f"{_PAGE}/{version('airflow-provider-kinetic')}/#{name}"


def before_the_end(task: Any, function: Callable[..., Any], given: Iterable[Any]) -> Lineage:
    """Return what is known before a task's job has ended: its inputs among `given`, its source, its assets.

    OpenLineage looks at a task's inlets and outlets only where an operator tells of no data.
    """
    lineage = OperatorLineage(inputs=list(_datasets(given)), job_facets=_source(function))
    manager = ExtractorManager()  # type: ignore[no-untyped-call]  # Airflow's is not annotated
    manager.extract_inlets_and_outlets(lineage, task)
    return lineage


def of_job(lineage: Lineage, connections: Connections, record: JobRecord) -> Lineage:
    """Return the lineage with the outputs and the facet of a job that has ended."""
    backend = backend_of(record.reference, connections)
    lineage.outputs.extend(_outputs(backend, record.reference))
    lineage.run_facets["kinetic_job"] = _job_facet(backend, record)
    return lineage


def of_batch(
    lineage: Lineage,
    connections: Connections,
    reference: JobReference,
    size: int,
    failed: int | None,
    run_seconds: float | None,
) -> Lineage:
    """Return the lineage with the outputs and the facet of a batch.

    `failed` is None if it has not ended; `run_seconds`, for which its inputs ran, if that is not known.
    """
    backend = backend_of(reference, connections)
    accelerator, phases = reference.hardware, {"function": run_seconds or 0.0}
    lineage.outputs.extend(_batch_outputs(backend, reference, size))
    lineage.run_facets["kinetic_batch"] = KineticBatchRunFacet(
        batchId=reference.job_id,
        **_place(reference, accelerator),
        inputs=size,
        failed=failed,
        runSeconds=None if run_seconds is None else round(run_seconds, 3),
        **({} if run_seconds is None else _usage(backend, reference.job_id, accelerator, phases)),
    )
    return lineage


def _source(function: Callable[..., Any]) -> dict[str, Any]:
    if not conf.is_source_enabled():
        return {}
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return {}
    return {"sourceCode": source_code_job.SourceCodeJobFacet(language="python", sourceCode=source)}


def _datasets(values: Iterable[Any]) -> Iterator[Any]:
    """Yield a dataset for each `Data` in the values, however deep, once."""
    seen = set()
    for data in _data_in(values):
        name = _name(data.path)
        if data.dataset is not None:
            name = _HUB, data.dataset.repo
        if name not in seen:
            seen.add(name)
            yield Dataset(*name)


def _data_in(value: Any) -> Iterator[Data]:
    if isinstance(value, Data):
        yield value
    elif isinstance(value, Mapping):
        yield from _data_in(value.values())
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes) and hasattr(value, "__len__"):
        for each in value:
            yield from _data_in(each)


def _name(location: str) -> tuple[str, str]:
    """Return namespace and name of a place, as OpenLineage names places in Cloud Storage and files."""
    if not location.startswith(_GCS):
        return _FILE, unquote(location.removeprefix("file://"))
    bucket, name = gcs_location(f"{location.rstrip('/')}/")
    return f"{_GCS}{bucket}", name.rstrip("/") or "/"


def _outputs(backend: Backend, reference: JobReference) -> Iterator[Any]:
    """Yield a dataset for the job's output directory, if there is a file in it and it can be listed."""
    try:
        outputs = find_outputs(backend.connections, reference)
    except (KineticError, OSError) as error:
        _LOG.info(_NO_OUTPUTS, reference.job_id, error)
        return
    if len(outputs):
        yield _written(outputs.location, len(outputs), sum(file.size for file in outputs))


def _batch_outputs(backend: Backend, reference: JobReference, size: int) -> Iterator[Any]:
    """Yield one dataset for the output directories of all inputs, if there is a file and it can be listed."""
    try:
        found = count_batch_outputs(backend.connections, reference, size)
    except (KineticError, OSError) as error:
        _LOG.info(_NO_OUTPUTS, reference.job_id, error)
        return
    if found.files != 0:
        yield _written(found.location, found.files, found.size)


def _written(location: str, files: int | None, size: int | None) -> Any:
    """Return the dataset of files that were written; without statistics if they were not counted."""
    namespace, name = _name(location)
    if files is None:
        return OutputDataset(namespace, name)
    facet = OutputStatisticsOutputDatasetFacet(size=size, fileCount=files)
    return OutputDataset(namespace, name, outputFacets={"outputStatistics": facet})


def _job_facet(backend: Backend, record: JobRecord) -> KineticJobRunFacet:
    reference, end = record.reference, record.end
    phases = () if end is None else end.phases
    try:
        accelerator = accelerator_now(backend, reference)
    except (KineticError, OSError):
        accelerator = reference.hardware
    seconds: dict[str, float] = {}
    for phase in phases:
        seconds[phase.name] = round(seconds.get(phase.name, 0.0) + phase.seconds, 3)
    return KineticJobRunFacet(
        jobId=reference.job_id,
        **_place(reference, accelerator),
        status="" if end is None else end.status.value,
        failureClass="" if end is None else end.failure_class,
        attempts=0 if end is None else end.attempt + 1,
        phases=seconds,
        **_usage(backend, reference.job_id, accelerator, seconds),
    )


def _place(reference: JobReference, accelerator: str) -> dict[str, Any]:
    return {
        "backend": reference.backend,
        "cluster": "/".join(reference.cluster or ()),
        "namespace": reference.namespace,
        "accelerator": accelerator,
        "image": reference.image_uri,
    }


def _usage(backend: Backend, job_id: str, accelerator: str, phases: Mapping[str, float]) -> dict[str, Any]:
    """Return what the job has held and, where there is a price, what it has cost."""
    try:
        usage = usage_in(job_id, accelerator, phases.items())
        prices = known_prices(backend.connections.settings)
    except KineticError as error:
        _LOG.info("the cost of %s is not in its lineage: %s", job_id, error)
        return {}
    held = {f"{usage.unit}Seconds": round(usage.held, 1)}
    cost = prices.cost(usage) if prices else None
    return held if prices is None or cost is None else {**held, "cost": cost, "currency": prices.currency}

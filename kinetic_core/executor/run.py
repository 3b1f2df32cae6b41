"""`run`: the decorator."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from kinetic_core.errors import InvalidFunction
from kinetic_core.executor.callable import RemoteCallable
from kinetic_core.lifecycle.options import RunOptions

if TYPE_CHECKING:
    from pathlib import Path

    from kinetic_core.data.data import Data

P = ParamSpec("P")
R = TypeVar("R")


class Decorator(Protocol):
    """What `run(...)` returns: it keeps the signature of what it decorates."""

    def __call__(self, function: Callable[P, R], /) -> RemoteCallable[P, R]: ...


def run(
    accelerator: str | Sequence[str] = "tpu-v5e-1",
    container_image: str | None = None,
    base_image_repo: str | None = None,
    zone: str | None = None,
    project: str | None = None,
    capture_env_vars: list[str] | Sequence[str] | None = None,
    cluster: str | None = None,
    backend: str | None = None,
    namespace: str | None = None,
    volumes: Mapping[str, Data] | None = None,
    spot: bool = False,
    output_dir: str | None = None,
    debug: bool = False,
    *,
    requirements: str | Path | Sequence[str] | None = None,
    memory: str | int | None = None,
    timeout: float | None = None,
    capacity_timeout: float | None = None,
    budget: float | None = None,
    retries: int = 0,
    infrastructure_retries: int | None = None,
    cpu: float | None = None,
    disk: str | int | None = None,
    reservation: str | None = None,
    flex_start: bool = False,
    priority_class: str | None = None,
    queue: str | None = None,
    service_account: str | None = None,
    node_selector: Mapping[str, str] | None = None,
    tolerations: Sequence[Mapping[str, Any]] | None = None,
    labels: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    run_as_root: bool = False,
    cache_volume: str | None = None,
    lease: float | None = None,
    hang_after: float | None = None,
    security_context: Mapping[str, Any] | None = None,
) -> Decorator:
    """Decorate a function so that calling it runs it on a TPU, a GPU or the machine `backend` names.

    accelerator: hardware and size: `tpu-v6e-8`, `gpu-l4`, `gpu-a100-80gb-4`, `cpu`, `cpu:8`; `:spot` at
        the end is `spot=True`. A list is tried in its order, until one has capacity.
    container_image: image to run in; None or `"bundled"` for one that is built with the project's
        dependencies, `"prebuilt"` for a base image that gets them when the job starts.
    requirements: what the job needs installed, instead of what the project's files say: a path
        (`requirements.txt`, `pyproject.toml[extra]`, `uv.lock:group`) or a list of requirements.
    base_image_repo: repository of base images for `container_image="prebuilt"`, made by
        `kinetic_core.build_image`; falls back to `KINETIC_BASE_IMAGE_REPO`, then to the cluster's own.
    zone, project, cluster, namespace: where; each falls back to its `KINETIC_*` variable.
    capture_env_vars: names, or prefixes ending in `*`, of variables the job should see.
    backend: `"local"`, `"gke"` or `"pathways"` (LeaderWorkerSets); falls back to `KINETIC_BACKEND`, and to
        what suits a slice of several hosts on its cluster.
    volumes: absolute mount path to `Data` that should be there when the function starts.
    spot: use spot capacity.
    output_dir: what the job finds as `KINETIC_OUTPUT_DIR`; default: a place of its own per job.
    debug: let the function wait for a debugger (debugpy) before its first line; a call then also offers it
        at a port of this machine, see docs/guides/debugging.md. For one call, not for maps.
    memory: limit per host, such as `"16Gi"` or bytes; None for no limit.
    timeout: seconds from submission after which the job is ended, waiting and debugging included; None for
        no limit.
    capacity_timeout: seconds to wait for each of several accelerators before the next is tried, 600 if
        None; the last is waited for as long as `timeout` allows.
    budget: what the job may cost, over all attempts, at the prices of `KINETIC_PRICES` and in their currency;
        then it is ended, wherever it is. Waiting costs nothing. Of a map, what each input may cost.
    retries: extra attempts after the function failed.
    infrastructure_retries: those after what was not its fault: preemption, a lost node, the store; None for
        10, or none with `debug`.
    cpu, disk: cores and ephemeral storage to ask for; None for what the accelerator's machine has, and
        for the disk that project and data need. A job that uses more than `disk` is evicted.
    flex_start: only nodes that GKE makes by flex-start, for TPUs and GPUs.
    reservation, priority_class, queue (of Kueue), service_account, node_selector, tolerations, labels: as
        Kubernetes and GKE mean them.
    secrets: variable to `"secret/key"` of the namespace, or to `"projects/P/secrets/S"` of Secret Manager,
        which the pod reads; the value never leaves the cluster.
    run_as_root: for images that need it; else the pod runs as user 1000.
    cache_volume: a PersistentVolumeClaim of the namespace that keeps downloaded data, and the packages of
        `"prebuilt"` images, for other jobs.
    lease: seconds after which an attempt that cannot reach the store ends itself, so that another can take
        the place of one whose node has fallen silent; at least 15. None waits for the node.
    hang_after: seconds without a line of output and with an idle processor, on all hosts, after which the
        attempt fails with the stacks of all; at least 5. None waits.
    security_context: fields of the container's securityContext, in place of or beside ours.

    What is about pods has no effect with backend "local", except that `secrets` is refused there.
    Everything is checked here, when the decoration is evaluated. Raises InvalidRequest or one of its
    kinds, TypeError for an argument of the wrong type.
    """
    if callable(accelerator):
        raise InvalidFunction(
            'run needs its options: write @run(accelerator="tpu-v5e-1") (or any other), not a bare @run'
        )
    if debug and spot:
        warnings.warn("debug=True with spot=True: the pod may be taken away in mid-debugging", stacklevel=2)
    options = RunOptions.checked(
        accelerator,
        spot=spot,
        capture_env_vars=capture_env_vars,
        volumes=volumes,
        memory=memory,
        timeout=timeout,
        capacity_timeout=capacity_timeout,
        budget=budget,
        retries=retries,
        infrastructure_retries=infrastructure_retries,
        requirements=requirements,
        debug=debug,
        cpu=cpu,
        disk=disk,
        reservation=reservation,
        flex_start=flex_start,
        priority_class=priority_class,
        queue=queue,
        service_account=service_account,
        node_selector=node_selector,
        tolerations=tolerations,
        labels=labels,
        secrets=secrets,
        run_as_root=run_as_root,
        cache_volume=cache_volume,
        lease=lease,
        hang_after=hang_after,
        security_context=security_context,
        container_image=container_image,
        base_image_repo=base_image_repo,
        zone=zone,
        project=project,
        cluster=cluster,
        backend=backend,
        namespace=namespace,
        output_dir=output_dir,
    )

    def decorate(function: Callable[P, R], /) -> RemoteCallable[P, R]:
        from kinetic_core.packaging.callables import check_callable

        check_callable(function)
        return RemoteCallable(function, options)

    return decorate

"""Accelerator of the job: what frameworks are told of it, and whether this pod has it."""

from __future__ import annotations

import os
from glob import glob

from .attempt import Job

_DEVICES = {
    "gpu": ("nvidia[0-9]*", "dxg"),
    "tpu": ("accel[0-9]*", "accel/accel[0-9]*", "vfio/[0-9]*"),
}
"""Device files below /dev, from which every framework learns of the hardware."""


def _kind(job: Job) -> str:
    """Return `cpu`, `gpu` or `tpu`; "" on this machine, which runs a job on whatever it has."""
    return "" if job.backend == "local" else job.accelerator[:3]


def variables(job: Job, dev: str = "/dev") -> dict[str, str]:
    """Return the variables by which frameworks use the accelerator or fail, but never fall back to the CPU.

    JAX ignores `cuda` in `cuda,cpu` where it sees no GPU, and fails for `cuda` alone. The CPU comes second
    because callbacks and checkpoints use it. PyTorch and TensorFlow have no such variable for GPUs.
    """
    kind = _kind(job)
    if kind == "gpu":
        return {"JAX_PLATFORMS": "cuda,cpu" if _devices(kind, dev) else "cuda"}
    if kind == "tpu":
        return {"JAX_PLATFORMS": "tpu,cpu", "PJRT_DEVICE": "TPU"}
    return {"JAX_PLATFORMS": "cpu"} if kind == "cpu" else {}


def missing(job: Job, dev: str = "/dev") -> str | None:
    """Return a line for the log if the pod lacks the accelerator that was asked for."""
    kind = _kind(job)
    if kind not in _DEVICES or _devices(kind, dev):
        return None
    return (
        f"kinetic: asked for {job.accelerator}, and the pod has no {kind.upper()} device: look at the node's "
        "driver and device plugin. Code that falls back to the CPU runs there"
    )


def _devices(kind: str, dev: str) -> list[str]:
    return sorted(path for pattern in _DEVICES[kind] for path in glob(os.path.join(dev, pattern)))

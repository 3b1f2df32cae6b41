"""A job uses the accelerator that it asked for, or fails; it never runs on the CPU without saying so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kinetic_core._runner.accelerator import missing, variables
from kinetic_core._runner.attempt import Job, take_job
from tests.runner.attempts import Attempts


def job_on(attempts: Attempts, accelerator: str, backend: str = "gke") -> Job:
    return take_job(attempts.environment(KINETIC_ACCELERATOR=accelerator, KINETIC_BACKEND=backend))


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    for name in ("null", "nvidiactl", "vfio/vfio"):  # what a machine without devices may have
        (tmp_path / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / name).touch()
    return tmp_path / "dev"


@pytest.mark.parametrize(
    ("accelerator", "device"),
    [("gpu-l4-1", "nvidia0"), ("tpu-v3-8:spot", "accel0"), ("tpu7x-4", "vfio/0")],
)
def test_a_pod_without_its_device_says_so(
    attempts: Attempts, dev: Path, accelerator: str, device: str
) -> None:
    job = job_on(attempts, accelerator)
    line = missing(job, str(dev))
    assert line is not None
    assert line.startswith(f"kinetic: asked for {accelerator}, and the pod has no {accelerator[:3].upper()}")
    (dev / device).touch()
    assert missing(job, str(dev)) is None


def test_nothing_is_missing_on_cpus_and_this_machine(attempts: Attempts, dev: Path) -> None:
    assert missing(job_on(attempts, "cpu:4"), str(dev)) is None
    assert missing(job_on(attempts, "gpu-l4-1", "local"), str(dev)) is None


def test_jax_may_not_fall_back_to_the_cpu(attempts: Attempts, dev: Path) -> None:
    def platforms(accelerator: str, backend: str = "gke") -> str | None:
        return variables(job_on(attempts, accelerator, backend), str(dev)).get("JAX_PLATFORMS")

    assert platforms("tpu-v5p-8", "pathways") == "tpu,cpu"
    assert platforms("gpu-l4-1") == "cuda"
    (dev / "nvidia0").touch()
    assert platforms("gpu-l4-1") == "cuda,cpu"
    assert platforms("cpu") == "cpu"
    assert platforms("gpu-l4-1", "local") is None


def told() -> tuple[str | None, str | None]:
    return os.environ.get("JAX_PLATFORMS"), os.environ.get("PJRT_DEVICE")


def test_the_job_is_told_and_says_that_nothing_is_there(attempts: Attempts) -> None:
    attempts.submit(told).run(KINETIC_ACCELERATOR="tpu-v5e-1", KINETIC_BACKEND="gke")
    assert attempts.outcome().value_or_raise() == ("tpu,cpu", "TPU")
    has_device = any(Path("/dev").glob("accel*")) or any(Path("/dev").glob("vfio/[0-9]*"))
    assert ("kinetic: asked for tpu-v5e-1, and" in attempts.log) != has_device


def test_image_and_captured_variables_win(attempts: Attempts) -> None:
    attempts.submit(told, env={"JAX_PLATFORMS": ""})
    attempts.run(KINETIC_ACCELERATOR="tpu-v5e-1", KINETIC_BACKEND="gke", PJRT_DEVICE="CPU")
    assert attempts.outcome().value_or_raise() == ("", "CPU")

"""The image of Airflow's workers: the test environment's Airflow and the wheel of this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

from kinetic_core.store.gcs import GcsObjectStore

_CHECKOUT = Path(__file__).parents[2]
_SOURCES = (
    "kinetic_core",
    "airflow_provider",
    "runner",
    "pyproject.toml",
    "setup.cfg",
    "README.md",
    "LICENSE",
)
_DOCKERFILE = """
FROM python:3.11-slim
ADD {lock} /tmp/lock.txt
RUN uv pip install --compile-bytecode --no-deps -r /tmp/lock.txt dumb-init==1.2.5.post1
ADD {wheel} /tmp/{name}
RUN uv pip install --compile-bytecode --no-deps /tmp/{name}
ENTRYPOINT ["dumb-init", "--"]
"""
"""As Airflow's own image begins: a process with the number 1 that has no handler would ignore SIGTERM."""
REPOSITORY = "kinetic-tests/airflow-worker"


def worker_image(folder: Path, environment: dict[str, str], run: str) -> str:
    """Build it with the stand-in for Cloud Build, whose host reads files from the bucket; its address."""
    wheel = _wheel(folder)
    lock = (_CHECKOUT / ".ci" / "locks" / "airflow.txt").read_bytes()
    file = folder / "Dockerfile"
    urls = {"lock": _at(run, "lock.txt", lock), "wheel": _at(run, wheel.name, wheel.read_bytes())}
    file.write_text(_DOCKERFILE.format(name=wheel.name, **urls))
    command = [str(Path(sys.executable).with_name("kinetic")), "build-image", "--category", "cpu"]
    command += ["--repo", REPOSITORY, "--dockerfile", str(file)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.split()[-1]


def _wheel(folder: Path) -> Path:
    """Build it from a copy: setuptools leaves its things beside what it builds from."""
    copy = folder / "checkout"
    copy.mkdir()
    for name in _SOURCES:
        source = _CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    program = f"from setuptools import build_meta; print(build_meta.build_wheel({str(folder)!r}))"
    subprocess.run([sys.executable, "-c", program], cwd=copy, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _at(run: str, name: str, content: bytes) -> str:
    GcsObjectStore.at(f"test-bucket/{run}").create_if_absent(name, content)
    place = quote(f"{run}/{name}", safe="")
    return f"{os.environ['STORAGE_EMULATOR_HOST']}/storage/v1/b/test-bucket/o/{place}?alt=media"

"""A project's modules that define jobs can be imported in a job whose image has nothing but Python."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core._runner.client_package import ClientPackage
from kinetic_core.backends.kubernetes.bootstrap import BOOTSTRAP, client_archive, runner_archive
from kinetic_core.connections import default_connections
from kinetic_core.project.payload import pack_arguments, pack_function, payload_frame
from kinetic_core.project.root import locate_project
from kinetic_core.project.serialization import ProjectModules
from kinetic_core.project.tree import store_project
from tests.runner.attempts import JOB, Attempts

TRAINING = """
import kinetic_core
import kinetic_core.compat as kinetic
from kinetic_core import BatchError, BatchHandle, Client, Data, JobHandle, JobStatus, KineticError, run
from kinetic_core.errors import JobError

DATA = Data("./set")

class Model:
    @kinetic.run(accelerator="gpu-l4")
    def width(self):
        return 3

@run(accelerator="tpu-v5e-1", retries=2)
def double(x):
    return 2 * x

def in_pool(x):
    return double(x)
"""
WORK = """
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

def work():
    assert "kinetic_core" not in sys.modules
    from training import Model, double, in_pool
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pooled = pool.submit(in_pool, 5).result()
    return double(4), Model().width(), pooled, sys.modules["kinetic_core"].__file__

def after_a_full_disk(filler):
    import os
    from importlib import import_module
    from pathlib import Path

    here = Path(os.environ["KINETIC_WORK_DIR"])
    before = sorted(here.iterdir())
    with open(here / filler, "wb", buffering=0) as stream:
        try:
            while stream.write(bytes(1)):
                stream.write(bytes(4095))
        except OSError:
            pass
    try:
        import_module("training")
    except OSError as error:
        told = f"{error.errno} {error}"
    os.unlink(here / filler)
    left = set(here.iterdir()) - set(before)
    return told, sorted(map(str, left)), import_module("training").double(4)

def plain():
    return "kinetic_core" in sys.modules

def spawning():
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(first_there, 5).result()

def first_there(x):
    import training
    return training.double(x)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "training.py").write_text(TRAINING)
    (folder / "client_work.py").write_text(WORK)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in ("training", "client_work"):
        sys.modules.pop(name, None)


def run_bare(
    folder: Path,
    project: Path,
    function: str,
    *args: str,
    stores: bool = True,
    package: bytes | None = None,
    **settings: str,
) -> Attempts:
    """Run a function of `client_work` as a container does whose Python has no packages.

    `package`: what is in the store by the name of the archive of `kinetic_core`, if it is another.
    """
    import client_work  # type: ignore[import-not-found]

    attempts = Attempts(folder)
    cache = default_connections().settings.cache
    runner, (package_sha256, archive) = runner_archive(cache), client_archive(cache)
    package_bytes = len(archive)
    stored = (package_sha256, archive if package is None else package)
    for sha256, archive in (runner, stored) if stores else (runner,):
        attempts.store.create_if_absent(object_names.runner(sha256), archive)
    found = locate_project(project / "client_work.py", sys_path=[], cwd=project)
    modules = ProjectModules(str(found.root), "client_work")
    packed = pack_function(getattr(client_work, function), found, modules, lambda _: None)
    payload = payload_frame(
        packed,
        pack_arguments(args, {}, modules, lambda _: None),
        tree=store_project(found, attempts.store, cache=folder / "cache").sha256,
        env={},
        volumes=[],
        output_dir="",
        spec_digest="",
        client_package=(package_sha256, package_bytes),
    )
    attempts.payload_sha256, attempts.payload_bytes = wire.digest(payload), len(payload)
    attempts.store.create_if_absent(object_names.payload(JOB, attempts.payload_sha256), payload)
    told = {
        "KINETIC_RUNNER_SHA256": runner[0],
        "KINETIC_RUNNER_BYTES": str(len(runner[1])),
        "KINETIC_PROTOCOL": str(wire.PROTOCOL),
    }
    environment = {**attempts.environment(), **told, **settings}
    del environment["PYTHONPATH"]
    Path(environment["KINETIC_WORK_DIR"]).mkdir(parents=True)
    with (folder / "log").open("wb") as log:
        subprocess.run(
            [sys.executable, "-S", "-E", "-u", "-c", BOOTSTRAP],
            env=environment,
            stdout=log,
            stderr=log,
            timeout=60,
            check=False,
        )
    return attempts


@pytest.mark.promise("data: No Docker on the client; the client is not installed in pods")
def test_decorated_functions_run_in_place_in_any_image(tmp_path: Path, project: Path) -> None:
    attempts = run_bare(tmp_path, project, "work")
    *values, file = attempts.outcome().value_or_raise()
    assert values == [8, 3, 10], attempts.log
    assert file.startswith(str(tmp_path / "work"))
    assert "cannot be imported" not in attempts.log


def test_a_spawned_process_may_be_the_first_to_import_it(tmp_path: Path, project: Path) -> None:
    assert run_bare(tmp_path, project, "spawning").outcome().value_or_raise() == 10


def test_nothing_is_fetched_unless_it_is_imported(tmp_path: Path, project: Path) -> None:
    assert run_bare(tmp_path, project, "plain", stores=False).outcome().value_or_raise() is False


def test_a_package_that_is_gone_is_named(tmp_path: Path, project: Path) -> None:
    with pytest.raises(ImportError, match="kinetic_core is not in this image, and cannot be fetched"):
        run_bare(tmp_path, project, "work", stores=False).outcome().value_or_raise()


@pytest.mark.attack
def test_a_package_that_was_replaced_is_not_imported(tmp_path: Path, project: Path) -> None:
    hostile = io.BytesIO()
    with zipfile.ZipFile(hostile, "w") as archive:
        archive.writestr("kinetic_core/__init__.py", f"open({str(tmp_path / 'planted')!r}, 'w')")
    attempts = run_bare(tmp_path, project, "work", package=hostile.getvalue())
    with pytest.raises(ImportError, match="is not the one this job was submitted with"):
        attempts.outcome().value_or_raise()
    assert not (tmp_path / "planted").exists()


@pytest.mark.attack
def test_of_an_endless_package_little_is_read(tmp_path: Path) -> None:
    """It is read by the process of user code, whose memory is the job's."""
    name = object_names.runner("0" * 64)
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, 1 << 30)
    finder = ClientPackage("0" * 64, 1000, f"file://{tmp_path}", str(tmp_path / "client"))
    tracemalloc.start()
    try:
        with pytest.raises(ImportError, match="is not the one this job was submitted with: it is larger"):
            finder.find_spec("kinetic_core")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.attack
@pytest.mark.skipif(sys.platform != "linux", reason="mounts a small file system")
def test_a_disk_that_is_full_is_told_and_nothing_is_left(tmp_path: Path, project: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(small)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        attempts = run_bare(
            tmp_path, project, "after_a_full_disk", "filler", KINETIC_WORK_DIR=str(small / "work")
        )
        told, left, value = attempts.outcome().value_or_raise()
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert told.startswith(f"{errno.ENOSPC} "), told
    assert "give the job more disk (disk=)" in told
    assert (left, value) == ([], 8)

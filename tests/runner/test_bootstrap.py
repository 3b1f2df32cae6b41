"""The program a container starts with fetches the runner, whatever becomes of its first requests."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from kinetic_core._runner import object_names, wire
from kinetic_core.backends.kubernetes.bootstrap import BOOTSTRAP, runner_archive
from kinetic_core.connections import default_connections
from kinetic_core.testing import FaultProxy, Faults
from kinetic_core.testing.faulty_server import FaultyHandler, FaultyServer
from tests.conftest import wait_for


def started(proxy: FaultyServer, folder: str) -> subprocess.Popen[str]:
    sha256, archive = runner_archive(default_connections().settings.cache)
    settings = {
        "KINETIC_PROTOCOL": str(wire.PROTOCOL),
        "KINETIC_STORE": "gs://bucket/prefix",
        "KINETIC_RUNNER_SHA256": sha256,
        "KINETIC_RUNNER_BYTES": str(len(archive)),
        "KINETIC_WORK_DIR": folder,
        "STORAGE_EMULATOR_HOST": proxy.url,
    }
    return subprocess.Popen(
        [sys.executable, "-c", BOOTSTRAP],
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def start(proxy: FaultyServer) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder, started(proxy, folder) as process:
        said, errors = process.communicate(timeout=90)
        return subprocess.CompletedProcess(process.args, process.returncode, said, errors)


def test_told_to_leave_while_the_runner_is_fetched_it_leaves() -> None:
    """With a handler, which the first process of a container needs: by default it would end by the signal."""
    with FaultProxy("http://127.0.0.1:1") as store, tempfile.TemporaryDirectory() as folder:
        store.faults.delay("runners/", 60.0)
        with started(store, folder) as process:
            wait_for(lambda: store.faults.count("runners/") == 1)
            process.terminate()
            process.communicate(timeout=90)
        assert process.returncode == wire.EXIT_INTERRUPTED


@pytest.mark.promise("gke: Runner fetched; an image's own of the same protocol respected")
@pytest.mark.parametrize(
    "fault",
    [
        lambda faults: faults.answer("runners/", 503),
        lambda faults: faults.drop("runners/"),
        lambda faults: faults.lose_reply("runners/"),
        lambda faults: faults.cut_reply("runners/", 1000),
    ],
    ids=["503", "dropped", "lost", "cut"],
)
def test_a_runner_that_does_not_arrive_is_fetched_again(fault: Callable[[Faults], None]) -> None:
    with FaultProxy("http://127.0.0.1:1") as store, FaultProxy(store.url) as proxy:
        digest, archive = runner_archive(default_connections().settings.cache)
        store.faults.answer(f"GET .*prefix/runners/{digest}.zip", 200, body=archive, times=None)
        fault(proxy.faults)
        done = start(proxy)
        assert done.returncode == wire.EXIT_NEVER_RETRY, done.stderr
        assert "the manifest sets no KINETIC_" in done.stderr  # it is the runner that says so
        assert proxy.faults.count("runners/") == 2


@pytest.mark.parametrize(
    ("spent", "group", "code"),
    [
        ("", "", wire.EXIT_UNPUBLISHED),
        ("1", "", wire.EXIT_UNPUBLISHED),
        ("2", "", wire.EXIT_NEVER_RETRY),
        ("2", "a-set", wire.EXIT_UNPUBLISHED),
    ],
)
def test_a_store_that_refuses_the_runner_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, spent: str, group: str, code: int
) -> None:
    """Another pod may be let in, but not for ever."""
    monkeypatch.setenv("KINETIC_IGNORED_COUNT", spent)
    monkeypatch.setenv("KINETIC_INFRASTRUCTURE_RETRIES", "2")
    monkeypatch.setenv("KINETIC_SET", group)
    with FaultProxy("http://127.0.0.1:1") as store:
        store.faults.answer("runners/", 403)
        done = start(store)
        assert (done.returncode, store.faults.count("runners/")) == (code, 1)
        assert "cannot fetch the runner from gs://bucket/prefix" in done.stderr


@pytest.mark.attack
def test_a_runner_that_was_replaced_runs_nowhere() -> None:
    """Whoever can write the bucket would run in every pod, before anything else does."""
    planted = io.BytesIO()
    with zipfile.ZipFile(planted, "w") as archive:
        archive.writestr("kinetic_runner/__init__.py", "print('planted')")
        archive.writestr("kinetic_runner/main.py", "main = lambda: 0")
    with FaultProxy("http://127.0.0.1:1") as store:
        store.faults.answer("runners/", 200, body=planted.getvalue())
        done = start(store)
    assert done.returncode == wire.EXIT_NEVER_RETRY
    assert "is not the one this job was submitted with" in done.stderr
    assert "planted" not in done.stdout


class Unpacking(FaultyHandler):
    """Cloud Storage with a runner that somebody has stored packed: it unpacks what a client cannot."""

    def serve(self, body: bytes, passed: int) -> None:
        del body, passed
        _, archive = runner_archive(default_connections().settings.cache)
        takes_packed = "gzip" in (self.headers.get("Accept-Encoding") or "")
        content = gzip.compress(archive) if takes_packed else archive
        self.reply(200, [("Content-Encoding", "gzip")] if takes_packed else [], len(content))
        self.write(content)


class UnpackingStore(FaultyServer):
    handler = Unpacking


@pytest.mark.attack
def test_a_runner_that_was_stored_packed_is_not_unpacked() -> None:
    """Some kilobytes could be unpacked to any size."""
    with UnpackingStore() as store:
        done = start(store)
    assert done.returncode == wire.EXIT_NEVER_RETRY
    assert "is not the one this job was submitted with" in done.stderr


ENDLESS, MEMORY = 1 << 30, 512 << 20


def start_with_endless_runner(folder: Path, size: int) -> subprocess.CompletedProcess[str]:
    """Run the program in little memory, with an endless object in the place of a runner of so many bytes."""
    sha256 = "ab" * 32
    planted = folder / "store" / object_names.runner(sha256)
    planted.parent.mkdir(parents=True)
    planted.touch()
    os.truncate(planted, ENDLESS)
    settings = {
        "KINETIC_PROTOCOL": str(wire.PROTOCOL),
        "KINETIC_STORE": f"file://{folder}/store",
        "KINETIC_RUNNER_SHA256": sha256,
        "KINETIC_RUNNER_BYTES": str(size),
        "KINETIC_WORK_DIR": str(folder),
        "KINETIC_INFRASTRUCTURE_RETRIES": "10",
    }
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({MEMORY},) * 2)\n{BOOTSTRAP}"
    return subprocess.run(
        [sys.executable, "-c", limited],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.mark.attack
@pytest.mark.skipif(sys.platform != "linux", reason="limits a process's memory")
def test_of_an_endless_runner_little_is_read(tmp_path: Path) -> None:
    done = start_with_endless_runner(tmp_path, 1000)
    assert done.returncode == wire.EXIT_NEVER_RETRY
    assert "is not the one this job was submitted with" in done.stderr


@pytest.mark.attack
@pytest.mark.parametrize("more", [b"x", bytes(1 << 20)])
def test_a_runner_with_bytes_behind_it_runs_nowhere(more: bytes) -> None:
    digest, archive = runner_archive(default_connections().settings.cache)
    with FaultProxy("http://127.0.0.1:1") as store:
        store.faults.answer(f"GET .*prefix/runners/{digest}.zip", 200, body=archive + more)
        done = start(store)
        assert store.faults.count("runners/") == 1
    assert done.returncode == wire.EXIT_NEVER_RETRY
    assert "is not the one this job was submitted with" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="limits a process's memory")
def test_a_want_of_memory_is_no_silence_of_the_store(tmp_path: Path) -> None:
    done = start_with_endless_runner(tmp_path, ENDLESS)
    assert done.returncode == wire.EXIT_NEVER_RETRY
    assert "no memory to fetch the runner" in done.stderr


@pytest.mark.attack
@pytest.mark.parametrize("of_set", ["", "a-set"])
def test_no_pod_is_restarted_for_a_runner_that_is_gone(monkeypatch: pytest.MonkeyPatch, of_set: str) -> None:
    monkeypatch.setenv("KINETIC_INFRASTRUCTURE_RETRIES", "10")
    monkeypatch.setenv("KINETIC_SET", of_set)
    with FaultProxy("http://127.0.0.1:1") as store:
        store.faults.answer("runners/", 404)
        done = start(store)
        assert (done.returncode, store.faults.count("runners/")) == (wire.EXIT_NO_RUNNER, 1)
        assert ".zip is gone: submit again" in done.stderr

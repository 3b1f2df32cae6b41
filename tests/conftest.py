"""Every test runs on settings of its own: no variable, cache or store of the developer's reaches it."""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import socket
import sys
import time
import tomllib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.testing.fault_proxy import FaultProxy
from tests.pod_network import steady_bridge


def pytest_configure() -> None:
    """Prepare what the tests stand on: signals, and the network of the test cluster if there is one.

    A background shell ignores Ctrl-C, and what tests start would inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("KUBECONFIG"):
        steady_bridge()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave the tests themselves out of garbage collection: they are a large heap, and stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of `nightly.toml` as slow, but for the cases that CI keeps."""
    with Path(__file__).with_name("nightly.toml").open("rb") as file:
        nightly: dict[str, dict[str, list[str]]] = tomllib.load(file)
    for item in items:
        name, _, case = item.name.partition("[")
        kept = nightly.get(item.nodeid.partition("::")[0], {}).get(name)
        if kept is not None and case.removesuffix("]") not in kept:
            item.add_marker(pytest.mark.slow)


_not_passed: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note each test that passes in the file `TESTS_PASSED`, if it is set, for `.ci/promises.py`."""
    place = os.environ.get("TESTS_PASSED")
    if not place or "PYTEST_XDIST_WORKER" in os.environ:  # workers report to the process that started them
        return
    if not report.passed:
        _not_passed.add(report.nodeid)
    elif report.when == "teardown" and report.nodeid not in _not_passed:
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


@pytest.fixture(scope="session")
def _archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archives of the runner and the package, the same for all tests: making them takes 0.2 s."""
    return tmp_path_factory.mktemp("archives")


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, _archives: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("KINETIC_", "GOOGLE_CLOUD_", "CLOUDSDK_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("KINETIC_PROFILES_FILE", str(tmp_path / "profiles.json"))
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "kinetic"))
    cache = tmp_path.with_name(f"{tmp_path.name}-cache")  # `tmp_path` itself is empty, and often a project
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    (cache / "kinetic").mkdir(parents=True)
    (cache / "kinetic" / "runners").symlink_to(_archives)


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Connecting to anything but this machine fails, unless a test is marked for a real service."""
    if request.node.get_closest_marker("cluster") or request.node.get_closest_marker("airflow"):
        yield
        return
    connect = socket.socket.connect

    def only_here(self: socket.socket, address: object) -> None:
        if isinstance(address, tuple) and not str(address[0]).startswith(("127.", "::1", "localhost")):
            raise AssertionError(f"a test of the default suite connects to {address}")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", only_here)
    yield


@pytest.fixture(scope="session")
def _one_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kinetic")


@pytest.fixture
def local_jobs(
    request: pytest.FixtureRequest, _own_settings: None, _one_store: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """Real jobs on the local backend, in one store for the session; their project is the test's directory.

    The directory of all tests would do, but a job that is given its 470 files takes three times as long.

    What a test leaves alive is ended: a job that waits for a file of a test that has failed would hold its
    CPU slot for ever, and two of them every slot of a small machine, for which all later jobs would wait.
    """
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(_one_store / "local"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(_one_store / "cache"))
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(request.path.parent))
    monkeypatch.setenv("KINETIC_BACKEND", "local")
    yield _one_store
    for store in {_one_store / "local", Path(os.environ["KINETIC_LOCAL_STORE"])}:
        end_local_jobs(store)


@pytest.fixture
def no_slot_is_free(local_jobs: Path) -> Iterator[Callable[[], None]]:
    """Local jobs wait until this is called."""
    with all_slots_taken(local_jobs / "local") as release:
        yield release


@contextmanager
def all_slots_taken(store: Path) -> Iterator[Callable[[], None]]:
    """The jobs of a local store wait, until what this yields is called."""
    from kinetic_core.backends.local import slots
    from kinetic_core.backends.local.layout import Layout

    held = slots.take_slots(Layout(str(store)).slots, slots.core_count())

    def release() -> None:
        while held:
            os.close(held.pop())

    try:
        yield release
    finally:
        release()


def end_local_jobs(store: Path) -> None:
    """End every job of a local store that lives: those that wait first, then those that have begun."""
    from kinetic_core.backends.local.backend import LocalBackend

    backend = LocalBackend(store)
    while live := _live_jobs(store):
        for _, namespace, job_id in sorted(live):
            backend.delete(namespace, job_id)


def _live_jobs(store: Path) -> list[tuple[bool, str, str]]:
    """Whether it has begun, namespace and id of each job that has not ended; none whose record is damaged."""
    from kinetic_core.backends.local.layout import Layout
    from kinetic_core.backends.local.record import is_over, read_job

    live = []
    for path in store.glob("cluster/*/*.json"):
        try:
            record = read_job(Layout(str(store)), path.parent.name, path.stem)
            if record is not None and not is_over(record):
                live.append(("waits" not in record, path.parent.name, path.stem))
        except (OSError, ValueError, TypeError, LookupError):  # removed just now, or damaged by a test
            continue
    return live


@dataclass(frozen=True)
class Done:
    """How a call of the command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


Kinetic = Callable[..., Done]


@functools.cache
def _command() -> Callable[..., None]:
    """The command with all its verbs; typer takes longer to make it than most verbs take."""
    import typer

    from kinetic_core.cli.main import build

    return typer.main.get_command(build())


@pytest.fixture
def kinetic(capfd: pytest.CaptureFixture[str]) -> Kinetic:
    """`kinetic("jobs", "list")`; what the command does to this process is undone."""

    def call(*words: str) -> Done:
        environment, path, modules = dict(os.environ), list(sys.path), set(sys.modules)
        capfd.readouterr()
        try:
            with pytest.raises(SystemExit) as ended:
                _command()(list(words), prog_name="kinetic")
        finally:
            os.environ.clear()
            os.environ.update(environment)
            sys.path[:] = path
            for name in set(sys.modules) - modules:
                if name.startswith(("cli_sample", "kinetic_probe")):
                    del sys.modules[name]
        printed = capfd.readouterr()
        code = ended.value.code
        return Done(int(code) if code is not None else 0, printed.out, printed.err)

    return call


@pytest.fixture
def emulator() -> str:
    """The address of the Cloud Storage emulator; skips where there is none."""
    address = os.environ.get("STORAGE_EMULATOR_HOST")
    if not address:
        pytest.skip("no STORAGE_EMULATOR_HOST: start ../shared/cluster/testcluster and eval its env")
    return address


@pytest.fixture
def gcs(emulator: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """The emulator behind a proxy that stumbles when it is told to. Every fault must happen."""
    with FaultProxy(emulator) as proxy:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", proxy.url)
        yield proxy
        assert proxy.faults.unmet == ()


def needs_program(found: object, said: str) -> None:
    """Skip where a program was not found; CI installs them, so that there it is a failure."""
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(said)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that nobody has collected yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    """Poll a condition that another process makes true; a busy machine gets six times the `seconds`.

    What takes longer is asked for less often: tests side by side would keep the API server busy.
    """
    begun = time.monotonic()
    while not condition():
        waited = time.monotonic() - begun
        assert waited < 6 * seconds, "it did not happen in time"
        time.sleep(max(0.01, min(waited / 20, 0.05)))

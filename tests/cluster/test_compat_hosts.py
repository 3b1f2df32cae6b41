"""What keras-kinetic documents of debuggers, accelerators that are taken, and several hosts, on a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_core.compat as kinetic
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.compat.job_status import JobStatus
from tests.cluster.jobs import pods
from tests.cluster.test_other_pythons import other_python
from tests.conftest import Kinetic, wait_for
from tests.debugger import Debugger

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("gke")]
HERE = Path(__file__)
on_slice = kinetic.run(accelerator="tpu-v5p-8")


def total(numbers: list[int]) -> int:
    result = 0
    for number in numbers:
        result += number  # where the debugger stops
    return result


def told(text: str) -> str:
    host = os.environ["TPU_WORKER_ID"]
    print(f"host {host} is running", flush=True)
    return f"{text} on host {host}"  # where the debugger of a slice stops


def hold(seconds: float) -> str:
    print("holding it", flush=True)
    time.sleep(seconds)
    return "given back"


def line(mark: str) -> int:
    lines = HERE.read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"  # {mark}"))


def mapping(printed: str) -> dict[str, str]:
    """The path mapping of what users are told to put into launch.json."""
    entry: dict[str, Any] = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    return entry["pathMappings"][0]


def test_a_debugger_attaches_before_user_code(capsys: pytest.CaptureFixture[str]) -> None:
    handle = kinetic.run(accelerator="cpu", debug=True)(total).run_async([2, 40])
    session = handle.debug_attach(0, working_dir=str(HERE.parent))
    try:
        with Debugger(session.port) as debugger:
            debugger.attach(mapping(capsys.readouterr().err), {HERE: [line("where the debugger stops")]})
            _, frame = debugger.stop()
            assert debugger.local_variables(frame)["result"] == "0", "nothing has run before"
        assert handle.result(timeout=300) == 42
        assert handle.status() is JobStatus.SUCCEEDED, "a debugged job stays"
    finally:
        kinetic.debug.cleanup_port_forward(session)
        handle.cleanup()


@pytest.mark.alone
@pytest.mark.slices
def test_others_wait_while_host_0_is_debugged(capsys: pytest.CaptureFixture[str], sets_removed: None) -> None:
    handle = kinetic.run(accelerator="tpu-v5p-8", debug=True)(told).run_async("hello")
    session = None
    try:
        session = handle.debug_attach(0, working_dir=str(HERE.parent))
        assert "is running" not in (handle.logs() or "")
        with Debugger(session.port) as debugger:
            where = mapping(capsys.readouterr().err)
            debugger.attach(where, {HERE: [line("where the debugger of a slice stops")]})
            thread, frame = debugger.stop()
            assert debugger.local_variables(frame)["host"] == "'0'"
            wait_for(lambda: "host 1 is running" in (handle.logs() or ""), 60)
            debugger.ask("continue", threadId=thread)
            assert handle.result(timeout=300) == "hello on host 0"
    finally:
        if session is not None:
            kinetic.debug.cleanup_port_forward(session)
        handle.cleanup()


@pytest.fixture
def sets_removed(api: ClusterApi, namespace: str) -> Iterator[None]:
    """What a test leaves would keep the nodes from the next."""
    yield
    api.delete_all("LeaderWorkerSet", namespace, "app=kinetic")


@pytest.mark.alone
@pytest.mark.slices
def test_a_set_gives_its_nodes_back(api: ClusterApi, sets_removed: None) -> None:
    """Collected, it leaves neither set nor pods; the next slice finds both nodes."""
    for text in ("first", "second"):
        handle = on_slice(told).run_async(text)
        assert handle.backend == "pathways"
        assert handle.result(timeout=300) == f"{text} on host 0"
        assert api.get("LeaderWorkerSet", handle.namespace, handle.k8s_name) is None
        wait_for(lambda gone=handle: not pods(api, gone), 90)


@pytest.mark.alone
@pytest.mark.slices
def test_an_accelerator_that_is_taken_is_named(request: pytest.FixtureRequest) -> None:
    command: Kinetic = request.getfixturevalue("kinetic")
    on_tpu = kinetic.run(accelerator="tpu-v5e-4")
    holder = on_tpu(hold).run_async(12)
    wait_for(lambda: holder.status() is JobStatus.RUNNING, 120)
    waiting = on_tpu(hold).run_async(0)
    wait_for(lambda: "Insufficient google.com/tpu" in command("jobs", "status", waiting.job_id).out, 60)
    assert waiting.status() is JobStatus.PENDING
    assert [job.result(timeout=300) for job in (holder, waiting)] == ["given back"] * 2


OTHER = """
import kinetic_core.compat as kinetic
handle = kinetic.run(accelerator="cpu")(lambda: 7).run_async()
try:
    print(handle.result(timeout=300))
except RuntimeError as error:
    print(error)
"""


def test_another_minor_version_of_python_is_named() -> None:
    python = other_python()
    if python is None:
        pytest.skip("no environment of another Python: run `make test-pythons` first")
    done = subprocess.run(
        [python, "-c", OTHER],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[2])},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    both = (python.parts[-3].removeprefix(".venv-"), ".".join(map(str, sys.version_info[:2])))
    assert all(version in done.stdout for version in both), done.stdout

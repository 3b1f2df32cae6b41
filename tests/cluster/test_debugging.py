"""A debugger on a real pod: through the API server to the pod's loopback, and what keeps it from there."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core._runner import object_names
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.objects import Pod
from kinetic_core.errors import ConfigurationError, WaitTimeout
from kinetic_core.provision.namespaces import RULES
from tests.cluster.jobs import pods
from tests.cluster.roles import USER, given_role
from tests.conftest import wait_for
from tests.debugger import Debugger

pytestmark = pytest.mark.usefixtures("gke")
HERE = Path(__file__)
DEVELOPER = {**USER, "name": "developer"}
(FORWARDING,) = (rule for rule in RULES if rule["resources"] == ["pods/portforward"])
ALL_ELSE = [
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
]


@kinetic_core.run(accelerator="cpu", debug=True)
def total(numbers: list[int]) -> int:
    result = 0
    for number in numbers:
        result += number  # where debuggers stop
    return result


@kinetic_core.run(accelerator="cpu", cpu=0.1, memory="160Mi")
def connect(address: str, port: int) -> str:
    """From another pod: what comes of it."""
    import socket

    try:
        socket.create_connection((address, port), timeout=5).close()
    except OSError as exc:
        return type(exc).__name__
    return "connected"


def on_slice(text: str) -> str:
    host = os.environ["KINETIC_HOST_INDEX"]
    print(f"host {host} is running", flush=True)
    return f"{text} on host {host}"  # where debuggers of slices stop


def line(mark: str) -> int:
    lines = HERE.read_text().splitlines()
    return next(number for number, text in enumerate(lines, 1) if text.endswith(f"  # {mark}"))


def mapping(printed: str) -> dict[str, str]:
    """The path mapping of what is to be put into launch.json."""
    entry: dict[str, Any] = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    return entry["pathMappings"][0]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert not [each.name for each in threading.enumerate() if "forward" in each.name]


@pytest.mark.promise("batches: debugpy on the pod's loopback, port-forward in pure Python")
@pytest.mark.promise(
    "batches: VS Code snippet with the right path mapping",
    "the client uses the printed mapping",
)
@pytest.mark.promise("batches: Real DAP client, real pod: breakpoint, variable")
def test_a_breakpoint_is_hit_in_a_pod_and_a_variable_read(capsys: pytest.CaptureFixture[str]) -> None:
    handle = total.run_async([2, 40])
    with handle.debug_attach(0, working_dir=str(HERE.parent)) as session:
        where = mapping(capsys.readouterr().err)
        assert where == {"localRoot": str(HERE.parent), "remoteRoot": "/kinetic/workspace"}
        with Debugger(session.port) as debugger:
            debugger.attach(where, {HERE: [line("where debuggers stop")]})
            thread, frame = debugger.stop()
            assert (frame["name"], frame["source"]["path"]) == ("total", str(HERE))
            assert debugger.local_variables(frame)["number"] == "2"
            debugger.ask("continue", threadId=thread)
            _, frame = debugger.stop()
            assert debugger.local_variables(frame)["number"] == "40"
        # Detached while the function stood still, and attached again: it runs on, and no attempt is spent.
        assert handle.result(60) == 42
        assert "has ended: the function returned" in session.wait(90)
    assert handle.observe().attempt == 0


@pytest.mark.promise("batches: debugpy on the pod's loopback, port-forward in pure Python")
def test_no_other_pod_can_connect_to_the_debugger(api: ClusterApi) -> None:
    """It is the loopback's: the port forwarded leads to it, the pod's address does not."""
    handle = total.run_async([2, 40])
    with handle.debug_attach(0) as session:
        (pod,) = pods(api, handle)
        told = object_names.debugger(handle.job_id, pod["metadata"]["uid"])
        port = json.loads(handle.place.store.read(told))["port"]
        outcome = connect.run_async(pod["status"]["podIP"], port).result(180, stream_logs=False)
        assert outcome == "ConnectionRefusedError"
        with Debugger(session.port) as debugger:
            debugger.attach({"localRoot": "/", "remoteRoot": "/"}, {})
            assert handle.result(60) == 42


@pytest.mark.promise("batches: `debug_attach`: `poll`, `wait`, `terminate`")
def test_a_pod_killed_under_the_debugger_is_gone(api: ClusterApi) -> None:
    handle = total.run_async([1])
    with handle.debug_attach(0) as session, Debugger(session.port) as debugger:
        debugger.ask("initialize", adapterID="debugpy", pathFormat="path")
        assert session.poll() is None
        (pod,) = pods(api, handle)
        api.delete("Pod", handle.namespace, pod["metadata"]["name"], grace=0)
        assert session.wait(60).startswith(f"the pod of {handle.job_id} that was debugged is gone: ")
        assert session.poll() == session.wait(0)
        with pytest.raises(AssertionError, match="has closed the connection"):
            debugger.event("stopped")


@pytest.mark.promise("batches: Waits separately for scheduling and attach")
def test_an_unscheduled_pod_has_the_schedulers_words() -> None:
    nowhere = kinetic_core.run(accelerator="cpu", debug=True, node_selector={"there-is": "none"})
    handle = nowhere(total.function).run_async([1])
    try:
        with pytest.raises(
            WaitTimeout, match=r"scheduling_timeout=3 s: Unschedulable: .*nodes are available"
        ):
            handle.debug_attach(0, scheduling_timeout=3)
    finally:
        handle.cancel()


def test_without_the_right_to_forward_ports_names_the_rule(
    api: ClusterApi, namespace: str, gke: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_NO_TTY_DEBUG", "1")
    monkeypatch.setenv("KINETIC_DEBUG_PORT", "0")
    role = {"metadata": {"name": "dbg-user"}, "rules": ALL_ELSE}
    monkeypatch.setenv("KINETIC_KUBECONFIG", gke["KINETIC_KUBECONFIG"].replace("admin", "developer"))
    with given_role(api, namespace, role, DEVELOPER):
        before = len(api.list("Job", namespace)["items"])
        with pytest.raises(ConfigurationError, match=r"pods/portforward.*resources: \[pods/portforward\]"):
            total([1])
        assert len(api.list("Job", namespace)["items"]) == before
        api.patch("Role", namespace, "dbg-user", {"rules": [*ALL_ELSE, FORWARDING]})
        handle = total.run_async([1])
        with handle.debug_attach(0) as session, Debugger(session.port) as debugger:
            debugger.attach({"localRoot": "/", "remoteRoot": "/"}, {})
            assert handle.result(60) == 1


@pytest.mark.promise("batches: Rank 0 of a slice", "as a set and as a Job")
@pytest.mark.alone
@pytest.mark.slices
@pytest.mark.parametrize(("asked", "chosen"), [(None, "pathways"), ("pathways", "pathways"), ("gke", "gke")])
def test_host_0_of_a_slice_is_debugged_while_others_wait(
    capsys: pytest.CaptureFixture[str], asked: str | None, chosen: str
) -> None:
    debugged = kinetic_core.run(accelerator="tpu-v5p-8", debug=True, backend=asked)(on_slice)
    handle = debugged.run_async("hello")
    try:
        assert handle.backend == chosen
        with handle.debug_attach(0, working_dir=str(HERE.parent)) as session:
            found = handle.place.get(handle.namespace, handle.job_id)
            assert found is not None
            assert {Pod(pod).host for pod in found[1]} == {0, 1}
            assert "is running" not in (handle.logs(host=1) or "")
            with Debugger(session.port) as debugger:
                where = mapping(capsys.readouterr().err)
                debugger.attach(where, {HERE: [line("where debuggers of slices stop")]})
                thread, frame = debugger.stop()
                assert debugger.local_variables(frame)["host"] == "'0'"
                wait_for(lambda: "host 1 is running" in (handle.logs(host=1) or ""))
                debugger.ask("continue", threadId=thread)
                assert handle.result(60) == "hello on host 0"
    finally:
        handle.cancel()  # or a failure would keep the slice from other tests

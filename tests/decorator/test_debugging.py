"""`debug=True`: a debugger stops in the function, reads its variables, lets it go on."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core._runner import object_names
from kinetic_core.backends.base import open_backend
from kinetic_core.backends.local import slots
from kinetic_core.backends.local.layout import Layout
from kinetic_core.cli.schemas import SCHEMAS, numbered
from kinetic_core.connections import default_connections
from kinetic_core.errors import InvalidRequest, JobMisconfigured, WaitTimeout
from kinetic_core.settings import read_settings
from tests.cli.published import PUBLISHED, misfits
from tests.conftest import Kinetic, wait_for
from tests.debugger import Debugger

pytestmark = pytest.mark.usefixtures("local_jobs")
HERE = Path(__file__)


@kinetic_core.run(accelerator="cpu", debug=True)
def total(numbers: list[int]) -> int:
    result = 0
    for number in numbers:
        result += number  # where debuggers stop
    return result


@kinetic_core.run(accelerator="cpu")
def idle() -> None:
    threading.Event().wait()


LINE = next(
    number
    for number, line in enumerate(HERE.read_text().splitlines(), 1)
    if line.endswith("# where debuggers stop")
)


def configuration(printed: str) -> dict[str, Any]:
    """What is to be put into launch.json."""
    found: dict[str, Any] = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    return found


def forwarding() -> list[str]:
    return [each.name for each in threading.enumerate() if "forward" in each.name]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def as_debugged(handle: kinetic_core.JobHandle) -> kinetic_core.JobHandle:
    return replace(handle, debug=True)


@pytest.mark.promise("batches: `debug_attach`: `poll`, `wait`, `terminate`")
def test_a_debugger_stops_at_a_breakpoint_and_reads_a_variable(capsys: pytest.CaptureFixture[str]) -> None:
    handle = total.run_async([2, 40])
    with handle.debug_attach(0, working_dir=str(HERE.parent)) as session:
        entry = configuration(capsys.readouterr().err)
        assert entry["connect"] == {"host": "127.0.0.1", "port": session.port}
        with Debugger(session.port) as debugger:
            debugger.attach(entry["pathMappings"][0], {HERE: [LINE]})
            thread, frame = debugger.stop()
            assert (frame["name"], frame["line"], frame["source"]["path"]) == ("total", LINE, str(HERE))
            assert debugger.local_variables(frame)["number"] == "2"
            debugger.ask("continue", threadId=thread)
            _, frame = debugger.stop()
            assert debugger.local_variables(frame)["number"] == "40"
            assert session.poll() is None
            session.terminate()  # while the function stands still: it goes on, without a debugger
            assert handle.result(60) == 42
    assert session.wait(0) == "terminated here"
    assert handle.observe().attempt == 0
    assert not forwarding()
    with pytest.raises(InvalidRequest, match=r"has ended.*result\(\)"):
        handle.debug_attach(0)
    waited = {phase.name: phase.seconds for phase in handle.explain().phases}
    assert waited["debugger"] > 0


def test_a_call_offers_its_debugger_at_the_port_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    monkeypatch.setenv("KINETIC_NO_TTY_DEBUG", "1")
    monkeypatch.setenv("KINETIC_DEBUG_PORT", str(port))
    printed: list[str] = []

    def is_told() -> bool:
        printed.append(capsys.readouterr().err)
        return f"127.0.0.1:{port}" in "".join(printed)

    with ThreadPoolExecutor() as pool:
        called = pool.submit(total, [1, 2])
        wait_for(is_told)
        (mapping,) = configuration("".join(printed))["pathMappings"]
        assert mapping["localRoot"] == os.environ["KINETIC_PACKAGE_ROOT"]
        with Debugger(port) as debugger:
            debugger.attach(mapping, {HERE: []})
            debugger.event("terminated")
        assert called.result(60) == 3
    assert not forwarding()


def test_a_function_that_nobody_debugs_runs_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_DEBUG_WAIT_TIMEOUT", "0")
    handle = total.run_async([5])
    assert handle.result(60) == 5
    assert "no debugger came" in (handle.logs() or "")


class Explosive:
    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("1 / 0",)


def test_a_call_whose_job_fails_before_it_listens_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_NO_TTY_DEBUG", "1")
    monkeypatch.setenv("KINETIC_DEBUG_PORT", "0")
    with pytest.raises(JobMisconfigured, match="unpickle failed: ZeroDivisionError"):
        total([Explosive()])  # type: ignore[list-item]
    assert not forwarding()


@pytest.mark.promise("batches: TTY and port checked before submission")
@pytest.mark.promise(
    "command: Debugging: checked before submission; `jobs result` leaves debug jobs (W75, W77)"
)
def test_without_a_terminal_nothing_is_submitted() -> None:
    before = len(kinetic_core.list_jobs())
    with pytest.raises(InvalidRequest, match=r"debug=True.*no terminal.*KINETIC_NO_TTY_DEBUG"):
        total([1])
    assert len(kinetic_core.list_jobs()) == before


@pytest.mark.promise("batches: TTY and port checked before submission")
@pytest.mark.promise(
    "command: Debugging: checked before submission; `jobs result` leaves debug jobs (W75, W77)"
)
def test_with_a_taken_port_nothing_is_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_NO_TTY_DEBUG", "1")
    before = len(kinetic_core.list_jobs())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("KINETIC_DEBUG_PORT", str(taken.getsockname()[1]))
        with pytest.raises(InvalidRequest, match=r"local_port=\d+ cannot be used.*KINETIC_DEBUG_PORT"):
            total([1])
    assert len(kinetic_core.list_jobs()) == before


def test_a_job_that_waits_for_a_slot_says_so() -> None:
    held = slots.take_slots(Layout(str(read_settings().local_store)).slots, slots.core_count())
    handle = total.run_async([1])
    try:
        with pytest.raises(WaitTimeout, match=r"scheduling_timeout=0.5 s: WaitingForSlot: no CPU slot"):
            handle.debug_attach(0, scheduling_timeout=0.5)
    finally:
        handle.cancel()
        for descriptor in held or ():
            os.close(descriptor)
    assert not forwarding()


@pytest.mark.promise("batches: Waits separately for scheduling and attach")
def test_a_silent_debugger_is_told_from_a_waiting_job() -> None:
    handle = idle.run_async()
    try:
        with pytest.raises(InvalidRequest, match="not started with debug=True"):
            handle.debug_attach(0)
        with pytest.raises(WaitTimeout, match=r"has started.*listening_timeout=0.1 s"):
            as_debugged(handle).debug_attach(0, listening_timeout=0.1)
        assert handle.status() is JobStatus.RUNNING
    finally:
        handle.cancel()


@pytest.mark.attack
def test_a_planted_address_moves_a_debugger_in_its_pod(capsys: pytest.CaptureFixture[str]) -> None:
    """To another port of the same pod, and another directory there."""
    handle = idle.run_async()
    try:
        wait_for(lambda: handle.status() is JobStatus.RUNNING)
        found = handle.place.get(handle.namespace, handle.job_id)
        assert found is not None
        name = object_names.debugger(handle.job_id, found[1][0]["metadata"]["uid"])
        with socket.create_server(("127.0.0.1", 0)) as theirs:
            told = {"port": theirs.getsockname()[1], "workspace": "/theirs"}
            handle.place.store.create_if_absent(name, json.dumps(told).encode())
            with as_debugged(handle).debug_attach(0) as session:
                assert configuration(capsys.readouterr().err)["pathMappings"][0]["remoteRoot"] == "/theirs"
                with socket.create_connection(("127.0.0.1", session.port), 30), theirs.accept()[0]:
                    session.terminate()
    finally:
        handle.cancel()


def test_a_job_that_its_deadline_ends_says_that_debugging_counts() -> None:
    late = kinetic_core.run(accelerator="cpu", timeout=1)(idle.function).run_async()
    with pytest.raises(InvalidRequest, match=r"has ended: .*timeout= counts the time spent in a debugger"):
        as_debugged(late).debug_attach(0)


@pytest.mark.promise(
    "command: Debugging: checked before submission; `jobs result` leaves debug jobs (W75, W77)"
)
@pytest.mark.promise("command: … of verbs that need a cloud or a debugger")
def test_the_command_opens_a_job_until_it_ends(kinetic: Kinetic) -> None:
    handle, port = total.run_async([1, 1]), free_port()

    def press_f5() -> None:
        with _connected(port) as debugger:
            debugger.attach({"localRoot": "/", "remoteRoot": "/"}, {})
            debugger.event("terminated")

    with ThreadPoolExecutor() as pool:
        pressed = pool.submit(press_f5)
        done = kinetic("jobs", "debug", handle.job_id, "--port", str(port), "--json")
        pressed.result(30)
    assert (done.code, done.json["ended"]) == (0, f"{handle.job_id} has ended: the function returned")
    assert done.json.keys() == {"schema", *SCHEMAS["jobs.debug"]}
    assert misfits(done.json, PUBLISHED[numbered("jobs.debug")]) == []
    assert kinetic("jobs", "result", handle.job_id).out == "2\n"
    assert has_payload(handle)  # its result was taken, and it stays to be looked at
    assert kinetic("jobs", "result", handle.job_id, "--cleanup").out == "2\n"
    assert not has_payload(handle)


def has_payload(handle: kinetic_core.JobHandle) -> bool:
    store = open_backend("local", default_connections()).store
    return any(store.list(f"jobs/{handle.job_id}/payload-"))


def _connected(port: int) -> Debugger:
    """As soon as the port is there: before it leads anywhere, a connection waits."""
    found: list[Debugger] = []

    def connects() -> bool:
        try:
            found.append(Debugger(port))
        except ConnectionRefusedError:
            return False
        return True

    wait_for(connects)
    return found[0]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: total.run_async_map([[1], [2]]), "debug=True is for one call"),
        (lambda: kinetic_core.run(accelerator="cpu", debug="yes"), "debug='yes' must be"),  # type: ignore[arg-type]
        (lambda: as_debugged(_nobody()).debug_attach(-1), "local_port=-1 must be between 0"),
        (lambda: as_debugged(_nobody()).debug_attach("5678"), "local_port='5678' must be"),  # type: ignore[arg-type]
    ],
)
def test_bad_input_is_named(call: Callable[[], object], told: str) -> None:
    with pytest.raises((InvalidRequest, TypeError), match=re.escape(told)):
        call()


def _nobody() -> kinetic_core.JobHandle:
    texts = ("job_id", "backend", "project", "cluster_name", "zone", "namespace", "bucket_name", "k8s_name")
    more = ("image_uri", "accelerator", "func_name", "display_name", "created_at")
    return kinetic_core.JobHandle(**dict.fromkeys((*texts, *more), ""))


def test_a_debug_job_is_not_repeated_unless_it_is_asked_for() -> None:
    assert total.options.infrastructure_retries == total.options.retries == 0
    assert idle.options.infrastructure_retries == 10
    asked = kinetic_core.run(accelerator="cpu", debug=True, infrastructure_retries=2)(lambda: None)
    assert asked.options.infrastructure_retries == 2


def test_spot_capacity_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="debug=True with spot=True"):
        kinetic_core.run(accelerator="tpu-v5e-1", debug=True, spot=True)

"""Logs of pods: whole, once, and at once."""

from __future__ import annotations

import pytest

from kinetic_core import JobStatus
from tests.cluster.jobs import on_cpu, running, sleep
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("gke")


@pytest.mark.promise("gke: Live, reconnecting, no doubled line")
def test_a_long_log_arrives_whole_and_once(capfd: pytest.CaptureFixture[str]) -> None:
    @on_cpu
    def loud() -> int:
        for number in range(20_000):
            print(f"line {number}")
        return 20_000

    handle = loud.run_async()
    assert handle.result(stream_logs=True, cleanup=False) == 20_000
    assert capfd.readouterr().out.splitlines() == [f"line {number}" for number in range(20_000)]
    assert (handle.logs() or "").count("\n") == 20_000
    handle.cleanup()


@pytest.mark.promise("gke: Across rotation")
def test_a_log_that_the_node_has_rotated_is_whole(capfd: pytest.CaptureFixture[str]) -> None:
    """The nodes keep 10 MiB and serve the newest file; who comes late reads the rest from the store."""

    @on_cpu
    def flood() -> str:
        import time

        for number in range(26_000):
            print(f"{number:06d} " + "x" * 993)
        print("all printed", flush=True)
        time.sleep(60)  # meanwhile the test reads these 26 MB several times, beside others
        return "done"

    def numbers(text: str | None) -> list[str]:
        return [line[:6] for line in (text or "").splitlines()[:26_000]]

    handle = flood.run_async()
    wait_for(lambda: "all printed" in (handle.logs() or ""), 60)
    expected = [f"{number:06d}" for number in range(26_000)]
    # What this client holds no more, and the node has rotated away, is there once the runner has stored it.
    wait_for(lambda: numbers(handle.logs()) == expected, 30)
    assert handle.status() is JobStatus.RUNNING
    assert handle.result(stream_logs=True, cleanup=False) == "done"
    assert numbers(capfd.readouterr().out) == expected
    assert numbers(handle.logs()) == expected
    handle.cleanup()


@pytest.mark.promise("gke: Live, reconnecting, no doubled line")
def test_the_log_of_a_running_job_is_there_at_once() -> None:
    handle = sleep.run_async(600)
    running(handle)
    wait_for(handle.logs)
    assert handle.logs() == "sleeping\n"
    assert handle.status() is JobStatus.RUNNING
    handle.cancel()

"""The runner as process 1 of a real container: what user code can do to it, and what it does for orphans."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core._runner import wire
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.errors import JobFailed, JobLost
from tests.cluster.jobs import evict, on_cpu, pods, sleep
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("gke")

LONG = 600
"""More seconds than any of these tests waits."""


def test_without_infrastructure_retries_a_lost_pod_is_the_end(api: ClusterApi) -> None:
    """Of the function: the pod that takes the place of the lost one only says so."""
    once = kinetic_core.run(accelerator="cpu", cpu=0.1, retries=1, infrastructure_retries=0)
    handle = once(sleep.__wrapped__).run_async(LONG)
    wait_for(lambda: "sleeping" in (handle.logs() or ""), 60)
    (pod,) = pods(api, handle)
    api.delete("Pod", handle.namespace, pod["metadata"]["name"])
    with pytest.raises(JobLost, match="interrupted once") as caught:
        handle.result(stream_logs=False, timeout=120)
    assert caught.value.failure is not None
    assert caught.value.failure.failure_class == wire.FailureClass.PREEMPTED
    handle.cleanup()


@pytest.mark.promise("gke: Kill, `os._exit`, segfault are observed facts")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_signal_of_user_code_to_itself_is_its_own_fault(number: signal.Signals) -> None:
    @on_cpu
    def die() -> None:
        print("about to die", flush=True)
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)  # the runner's makes an exit of it
        os.kill(os.getpid(), number)
        time.sleep(LONG)

    with pytest.raises(JobFailed, match=number.name) as caught:
        die.run_async().result(stream_logs=False, timeout=180)
    failure = caught.value.failure
    assert failure is not None
    assert (failure.failure_class, failure.signal, failure.exit_code) == (
        wire.FailureClass.USER_ERROR,
        number,
        None,
    )
    assert "about to die" in failure.last_lines


def test_sigterm_without_a_handler_of_its_own_is_an_exit() -> None:
    """Its `finally` blocks run, as they do when the pod is told to stop; but nobody told it."""

    @on_cpu
    def stop() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(LONG)
        finally:
            print("put away", flush=True)

    handle = stop.run_async()
    with pytest.raises(JobFailed) as caught:
        handle.result(stream_logs=False, timeout=180)
    assert caught.value.failure is not None
    assert (caught.value.failure.failure_class, caught.value.failure.exit_code) == (
        wire.FailureClass.USER_ERROR,
        143,
    )
    assert "put away" in (handle.logs() or "")
    handle.cleanup()


@pytest.mark.promise("gke: Kill, `os._exit`, segfault are observed facts")
def test_user_code_cannot_kill_the_runner() -> None:
    @on_cpu
    def attack() -> int:
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getppid(), signal.SIGSEGV)
        return os.getppid()

    assert attack.run_async().result(stream_logs=False, timeout=180) == 1


@pytest.mark.promise("gke: Exit codes 0, 1, 137, 143; SIGTERM during user code")
@pytest.mark.parametrize("spare", [0, 1])
def test_a_stop_signal_to_the_runner_is_an_interruption(spare: int) -> None:
    """Whoever sends it: the same signal comes from a node that goes."""

    @kinetic_core.run(accelerator="cpu", cpu=0.1, infrastructure_retries=spare)
    def stop_the_runner() -> str:
        if not int(os.environ["KINETIC_IGNORED_COUNT"] or 0):
            os.kill(os.getppid(), signal.SIGTERM)
            time.sleep(LONG)
        return "again"

    handle = stop_the_runner.run_async()
    if spare:
        assert handle.result(stream_logs=False, timeout=180) == "again"
        return
    with pytest.raises(JobLost, match="interrupted once"):
        handle.result(stream_logs=False, timeout=180)


@pytest.mark.promise("gke: Orphans are reaped")
def test_orphans_are_collected_when_they_end() -> None:
    """Process 1 inherits what nobody waits for; else a long job would collect zombies."""

    @on_cpu
    def orphan() -> tuple[str, bool]:
        program = """
import os, time
child = os.fork()
if child:
    print(child, flush=True)
else:
    os.close(1)
    time.sleep(1)
"""
        command = [sys.executable, "-c", program]
        made = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        process = Path("/proc", made.stdout.strip())
        parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
        deadline = time.monotonic() + 20
        while process.exists() and time.monotonic() < deadline:  # a zombie does
            time.sleep(0.1)
        return parent, process.exists()

    assert orphan.run_async().result(stream_logs=False, timeout=180) == ("1", False)


@pytest.mark.promise("gke: Orphans are reaped")
def test_an_orphan_that_goes_on_does_not_keep_the_job() -> None:
    """Though it holds the log open."""

    @on_cpu
    def leave_one() -> int:
        code = f"import time; print('left alone', flush=True); time.sleep({LONG})"
        program = f"import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}])"
        subprocess.run([sys.executable, "-c", program], start_new_session=True, check=True)
        return os.getpid()

    assert leave_one.run_async().result(stream_logs=False, timeout=180) > 1


FACTOR = 2


def scaled(value: int) -> int:
    return FACTOR * value


@on_cpu
def pools() -> list[list[int]]:
    found = []
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with ProcessPoolExecutor(1, mp_context=context) as executor, context.Pool(1) as pool:
            found.append([*executor.map(scaled, [1, 2]), *pool.map(scaled, [3])])
    return found


@pytest.mark.attack
def test_process_pools_over_what_the_image_cannot_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """The image lacks this package, which the function's module imports."""
    monkeypatch.setitem(globals(), "FACTOR", 3)
    assert pools.run_async().result(stream_logs=False, timeout=180) == [[3, 6, 9]] * 3


@pytest.mark.attack
def test_a_signal_to_its_own_group_ends_the_function_once() -> None:
    @on_cpu
    def end_group() -> None:
        print("once", flush=True)
        os.killpg(0, signal.SIGTERM)
        time.sleep(LONG)

    handle = end_group.run_async()
    with pytest.raises(JobFailed, match="ended by SIGTERM") as caught:
        handle.result(stream_logs=False, timeout=180)
    assert caught.value.failure is not None
    assert caught.value.failure.failure_class == wire.FailureClass.USER_ERROR
    assert (handle.logs() or "").count("once") == 1


class Slow:
    """Its pickle takes ten seconds."""

    def __reduce__(self) -> Any:
        print("encoding", flush=True)
        time.sleep(10)
        return str, ("the value",)


@pytest.mark.attack
def test_an_eviction_while_a_value_is_encoded_loses_nothing(api: ClusterApi) -> None:
    @on_cpu
    def work() -> Slow:
        return Slow()

    handle = work.run_async()
    wait_for(lambda: "encoding" in (handle.logs() or ""), 60)
    (pod,) = pods(api, handle)
    evict(api, pod)
    assert handle.result(stream_logs=False, timeout=180) == "the value"
    assert (handle.logs() or "").count("encoding") == 1

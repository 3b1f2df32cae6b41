"""Jobs on a slice of two hosts, on two real nodes: as Kubernetes Jobs, and what sets share with them."""

from __future__ import annotations

from pathlib import Path

import pytest

import kinetic_core
from kinetic_core import Data, JobStatus
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import HOST_INDEX
from kinetic_core.store.gcs import GcsObjectStore
from kinetic_core.testing import FaultProxy
from tests.cluster.jobs import evict, own_lines, pods
from tests.conftest import wait_for

pytestmark = [pytest.mark.usefixtures("gke"), pytest.mark.alone, pytest.mark.slices]
on_slice = kinetic_core.run(accelerator="tpu-v5p-8", backend="gke")


@on_slice
def meet() -> list[str]:
    """Host 0 hears from host 1 over the network, by the names the environment gives."""
    import os
    import socket
    import time

    names = os.environ["TPU_WORKER_HOSTNAMES"].split(",")
    print(f"worker {os.environ['TPU_WORKER_ID']}", flush=True)
    if os.environ["TPU_WORKER_ID"] == "0":
        with socket.create_server(("", 9000)) as server:
            heard, _ = server.accept()
            return [*names, heard.recv(100).decode()]
    for _ in range(100):
        try:
            with socket.create_connection((names[0], 9000), timeout=5) as talk:
                talk.sendall(b"hello from host 1")
            break
        except OSError:
            time.sleep(0.2)
    return []


@on_slice
def sleep(seconds: float) -> str:
    import os
    import time
    from pathlib import Path

    try:
        print(f"generation {os.environ['KINETIC_IGNORED_COUNT']}", flush=True)
        time.sleep(seconds)
    finally:
        if Path(os.environ["KINETIC_PREEMPTED"]).exists():
            print("told to leave", flush=True)
    return os.environ["KINETIC_IGNORED_COUNT"]


@on_slice
def sleep_once() -> str:
    """The first generation goes on until it is told to leave, however long that takes."""
    import os
    import time
    from pathlib import Path

    generation = os.environ["KINETIC_IGNORED_COUNT"]
    try:
        print(f"generation {generation}", flush=True)
        time.sleep(600 if generation == "0" else 0)
    finally:
        if Path(os.environ["KINETIC_PREEMPTED"]).exists():
            print("told to leave", flush=True)
    return generation


@pytest.mark.promise("gke: `logs()` after pod and node are gone; all hosts")
@pytest.mark.promise("gke: `tail`, `cancel`, `cleanup`")
@pytest.mark.promise("batches: All hosts' logs with the rank before each line")
@pytest.mark.promise("batches: `TPU_WORKER_ID`, `TPU_WORKER_HOSTNAMES`, coordinator address")
def test_two_hosts_find_each_other_and_both_are_logged(
    api: ClusterApi, capsys: pytest.CaptureFixture[str]
) -> None:
    handle = meet.run_async()
    *names, heard = handle.result(stream_logs=True, cleanup=False)
    assert sorted(own_lines(capsys.readouterr().out)) == ["[host 0] worker 0", "[host 1] worker 1"]
    assert heard == "hello from host 1"
    assert len({pod["spec"]["nodeName"] for pod in pods(api, handle)}) == len(names) == 2
    assert "hosts" in {phase.name for phase in handle.explain().phases}
    handle.cleanup(k8s=True, gcs=False)
    assert own_lines(handle.logs()) == ["[host 0] worker 0", "[host 1] worker 1"]
    assert own_lines(handle.logs(host=1)) == ["worker 1"]
    assert handle.tail(1) == "[host 1] worker 1"


@pytest.mark.promise(
    "batches: … chosen automatically",
    "a real server, which our proxy denies to have the CRD",
)
def test_where_there_are_no_sets_a_job_is_chosen_by_itself(api: ClusterApi, api_proxy: FaultProxy) -> None:
    """The server says, as one without their CRD, that it has no such group."""
    api_proxy.faults.answer(r"GET /apis/leaderworkerset\.x-k8s\.io.*", 404, times=None)
    handle = kinetic_core.run(accelerator="tpu-v5p-8")(meet.__wrapped__).run_async()
    assert handle.backend == "gke"
    *names, heard = handle.result(stream_logs=False, cleanup=False)
    assert (heard, len({pod["spec"]["nodeName"] for pod in pods(api, handle)})) == (
        "hello from host 1",
        len(names),
    )
    handle.cleanup()


@on_slice
def share(*folders: str) -> None:
    for folder in folders:
        print("share", *sorted(each.name for each in Path(folder).iterdir()), flush=True)


@pytest.mark.promise("data: Per-host sharding")
def test_each_host_gets_its_share_of_the_data(tmp_path: Path, location: str) -> None:
    names = [f"{number}.bin" for number in range(4)]
    store = GcsObjectStore.at(f"{location}/shards")
    (tmp_path / "set").mkdir()
    for name in names:
        (tmp_path / "set" / name).write_bytes(b"x")
        store.create_if_absent(name, b"x")
    handle = share.run_async(Data(str(tmp_path / "set"), shard=True), Data(f"{store.uri}/", shard=True))
    handle.result(stream_logs=False, cleanup=False)
    logs = [(handle.logs(host=host) or "").splitlines() for host in range(2)]
    hosts = [[line.split()[1:] for line in lines if line.startswith("share")] for lines in logs]
    assert len(hosts[0]) == 2
    for first, second in zip(*hosts, strict=True):
        assert len(first) == len(second) == 2
        assert sorted([*first, *second]) == names
    handle.cleanup()


@pytest.mark.promise("batches: One rank's failure ends all: its traceback, the others' stacks", "Job")
def test_one_hosts_failure_is_the_jobs_with_the_others_stacks() -> None:
    @on_slice
    def half() -> None:
        import os
        import time

        if os.environ["TPU_WORKER_ID"] == "1":
            raise KeyError("only here")
        time.sleep(600)

    handle = half.run_async()
    with pytest.raises(KeyError, match="only here") as caught:
        handle.result(stream_logs=False)
    told = "".join(caught.value.__notes__)
    assert "On host 1 of 2" in told
    assert "in half" in told.partition("Meanwhile on host 0")[2]
    handle.cleanup()


@pytest.mark.promise("batches: Hang detection with the stacks of all ranks")
@pytest.mark.parametrize("backend", ["gke", "pathways"])
def test_a_slice_that_hangs_ends_with_the_stacks_of_all_hosts(backend: str) -> None:
    @kinetic_core.run(accelerator="tpu-v5p-8", backend=backend, hang_after=5)
    def wait_for_each_other() -> None:
        import threading

        threading.Event().wait()

    handle = wait_for_each_other.run_async()
    with pytest.raises(kinetic_core.errors.JobFailed, match="on no host was anything") as caught:
        handle.result(stream_logs=False)
    first, _, second = "".join(caught.value.__notes__).partition("Meanwhile on host 1")
    assert "in wait_for_each_other" in first
    assert "in wait_for_each_other" in second
    handle.cleanup()


@pytest.mark.promise("batches: No CRD: Indexed Job and headless Service, same promise")
@pytest.mark.promise("batches: … in the middle")
def test_an_evicted_host_makes_all_start_anew(api: ClusterApi) -> None:
    handle = sleep_once.run_async()
    for host in (0, 1):  # a host that has not begun would not hear of it
        wait_for(lambda host=host: "generation 0" in (handle.logs(host=host) or ""), 60)  # type: ignore[misc]
    evicted = next(pod for pod in pods(api, handle) if pod["metadata"]["annotations"][HOST_INDEX] == "1")
    evict(api, evicted)
    assert handle.result(stream_logs=False, cleanup=False) == "1"
    lines = (handle.logs() or "").splitlines()
    assert {line for line in lines if "told" in line} == {f"[host {host}] told to leave" for host in (0, 1)}
    assert [line for line in lines if line.startswith("[host 1]")][-1] == "[host 1] generation 1"
    handle.cleanup()


def test_a_host_without_a_node_is_named(api: ClusterApi) -> None:
    api.patch("Node", "", "node-4", {"spec": {"unschedulable": True}})
    try:
        handle = sleep.run_async(1)
        wait_for(lambda: "host" in handle.observe().message and "wait for it" in handle.observe().message, 60)
        seen = handle.observe()
        assert (seen.status, seen.reason) == (JobStatus.PENDING, "Unschedulable")
    finally:
        api.patch("Node", "", "node-4", {"spec": {"unschedulable": None}})
    assert handle.result(stream_logs=False) == "0"


@pytest.mark.promise("batches: No CRD: Indexed Job and headless Service, same promise", '`backend="gke"`')
def test_cancelling_stops_every_host(api: ClusterApi) -> None:
    handle = sleep.run_async(600)
    wait_for(lambda: handle.status() is JobStatus.RUNNING, 60)
    handle.cancel()
    assert [pod for pod in pods(api, handle) if pod["status"]["phase"] == "Running"] == []
    with pytest.raises(kinetic_core.errors.JobCancelled):
        handle.result(stream_logs=False)
    handle.cleanup()


@pytest.mark.promise("batches: Two hosts, JAX on CPU, `psum`, through both")
@pytest.mark.parametrize("backend", ["gke", "pathways"])
def test_jax_adds_up_over_both_hosts(backend: str) -> None:
    """A psum over two processes on their CPUs, with what the environment says."""

    @kinetic_core.run(accelerator="tpu-v5p-8", backend=backend)
    def add_up() -> tuple[bool, int, float]:
        import os
        import subprocess
        import sys

        target = os.environ["KINETIC_WORK_DIR"] + "/jax"
        command = ["uv", "pip", "install", "-q", "--python", sys.executable, "--target", target, "jax"]
        environment = {**os.environ, "UV_CACHE_DIR": target + "-cache"}
        subprocess.run(command, check=True, env=environment)
        sys.path.insert(0, target)
        os.environ["JAX_PLATFORMS"] = "cpu"
        import jax
        import jax.numpy as jnp
        from jax.experimental import multihost_utils

        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"])
        )
        total = multihost_utils.process_allgather(jnp.array([jax.process_index() + 1.0])).sum()
        summed = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(jnp.ones(jax.local_device_count()))
        return float(summed[0]) == jax.device_count(), jax.process_count(), float(total)

    assert add_up.run_async().result(stream_logs=False, timeout=400) == (True, 2, 3.0)

"""Calls on workers of two hosts, on two real nodes."""

from __future__ import annotations

import os
import socket
import time

import pytest

import kinetic_core
from kinetic_core import JobStatus
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.errors import InstanceLost
from tests.cluster.jobs import own_lines, pods
from tests.conftest import Kinetic, wait_for

pytestmark = [pytest.mark.usefixtures("gke"), pytest.mark.alone, pytest.mark.slices]
warm = kinetic_core.run(accelerator="tpu-v5p-8", warm="5m", reuse="process", cpu=0.1)
_PORT = 9000
_calls: list[int] = []


@warm
def meet() -> tuple[list[str], str, int]:
    """Host 0 hears from host 1 over the network, by the names the environment gives."""
    _calls.append(1)
    names = os.environ["TPU_WORKER_HOSTNAMES"].split(",")
    print(f"call {len(_calls)} of worker {os.environ['TPU_WORKER_ID']}", flush=True)
    heard = ""
    if os.environ["TPU_WORKER_ID"] == "0":
        with socket.create_server(("", _PORT)) as server:
            talk, _ = server.accept()
            with talk:
                heard = talk.recv(100).decode()
    else:
        _say(names[0], f"call {len(_calls)} of host 1")
    return [os.environ["KINETIC_POD_UID"], heard], names[0], len(_calls)


def _say(host: str, text: str) -> None:
    for _ in range(100):
        try:
            with socket.create_connection((host, _PORT), timeout=5) as talk:
                talk.sendall(text.encode())
        except OSError:
            time.sleep(0.2)
        else:
            return


@warm
def nap() -> str:
    """Sleep on a worker; in pods of its own, return at once."""
    print("sleeping", flush=True)
    time.sleep(600 if "KINETIC_ON_WORKER" in os.environ else 0)
    return os.environ["KINETIC_POD_UID"]


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def fail(self) -> None:
        raise RuntimeError("as a device would")


def test_two_hosts_stay_warm_together(api: ClusterApi, kinetic: Kinetic) -> None:
    first = meet.run_async()
    (uid, heard), name, count = first.result(cleanup=False)
    assert (heard, count) == ("call 1 of host 1", 1)
    second = meet.run_async()
    assert second.result(cleanup=False) == ([uid, "call 2 of host 1"], name, 2)
    assert name == f"kinetic-{first.worker}-0.kinetic-hosts"
    assert own_lines(second.logs()) == ["[host 0] call 2 of worker 0", "[host 1] call 2 of worker 1"]
    assert pods(api, second) == []
    there = pods(api, kinetic_core.attach(first.worker))
    assert len({pod["spec"]["nodeName"] for pod in there}) == 2
    slow = nap.run_async()
    wait_for(lambda: own_lines(slow.logs()) == ["[host 0] sleeping", "[host 1] sleeping"], 60)
    (lost,) = (pod for pod in there if pod["metadata"]["uid"] != uid)
    api.delete("Pod", lost["metadata"]["namespace"], lost["metadata"]["name"])
    assert slow.result(cleanup=False) not in ("", uid)
    assert len(pods(api, slow)) == 2
    assert kinetic_core.attach(first.worker).status() is not JobStatus.RUNNING
    assert kinetic("warm", "stop", "--all").code == 0


def test_an_instance_lives_on_both_hosts(kinetic: Kinetic) -> None:
    counter = kinetic_core.cls(accelerator="tpu-v5p-8", warm="5m", cpu=0.1)(Counter)()
    assert [counter.add(), counter.add()] == [1, 2]
    with pytest.raises(RuntimeError, match="as a device would"):
        counter.fail()
    with pytest.raises(InstanceLost, match="the process that had it has ended"):
        counter.add()
    assert kinetic("warm", "stop", "--all").code == 0

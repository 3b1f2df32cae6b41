"""What a hostile job, which may write everything below its namespace's prefix, cannot do to other jobs."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import kinetic_core
from kinetic_core._runner import object_names, wire
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import GROUP_ID
from kinetic_core.store.gcs import GcsObjectStore
from tests.conftest import wait_for

pytestmark = [pytest.mark.attack, pytest.mark.usefixtures("gke")]


def key_hunt() -> dict[str, str]:
    """What user code learns from everything that it can open of its runner, and of itself."""

    def attempt(read: Callable[[], bytes]) -> str:
        try:
            return "KINETIC_OUTCOME_KEY" if b"KINETIC_OUTCOME_KEY" in read() else "no key"
        except OSError as exc:
            return type(exc).__name__

    def own() -> bytes:
        """The value's place is overwritten with zeros, its name is left."""
        block = Path("/proc/self/environ").read_bytes().replace(b"KINETIC_OUTCOME_KEY=" + b"0" * 64, b"")
        return block + repr(os.environ).encode()

    def memory() -> bytes:
        with Path("/proc/1/mem").open("rb") as stream:
            return stream.read(1)

    return {
        "environment of the runner": attempt(Path("/proc/1/environ").read_bytes),
        "memory of the runner": attempt(memory),
        "descriptors of the runner": attempt(lambda: repr(list(Path("/proc/1/fd").iterdir())).encode()),
        "own environment": attempt(own),
    }


def test_user_code_cannot_read_its_runner() -> None:
    hunt = kinetic_core.run(accelerator="cpu")(key_hunt)
    found = {
        "environment of the runner": "PermissionError",
        "memory of the runner": "PermissionError",
        "descriptors of the runner": "PermissionError",
        "own environment": "no key",
    }
    assert hunt() == found
    assert hunt.run_async_map([(), ()], input_mode="args").results() == [found, found]


class Planted:
    """Leaves a trace where it is unpickled."""

    def __init__(self, trace: str) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.trace,)


@kinetic_core.run(accelerator="cpu")
def square(number: int) -> int:
    return number * number


def test_a_replaced_payload_runs_nowhere(
    api: ClusterApi, namespace: str, location: str, tmp_path: Path
) -> None:
    """A finished batch's payload is replaced, and the user repeats the call."""
    store, group_id = GcsObjectStore.at(location), f"grp-{secrets.token_hex(4)}"
    trace = str(tmp_path / "unpickled")
    assert square.run_async_map([2, 3], group_id=group_id).results(cleanup=False) == [4, 9]
    (genuine,) = (info.name for info in store.list(f"batches/{group_id}/payload-"))
    header, _ = wire.decode_frame(store.read(genuine))
    del header["parts"]
    evil = wire.encode_frame(
        header, {"function": cloudpickle.dumps(lambda _: Planted(trace)), "function_copies": b""}
    )
    planted = object_names.batch_payload(group_id, wire.digest(evil))
    for name in (genuine, planted, f"batches/{group_id}/payload"):
        store.delete(name)
        store.create_if_absent(name, evil)
    jobs = {"labelSelector": f"{GROUP_ID}={group_id}"}
    api.delete_all("Job", namespace, jobs["labelSelector"])
    wait_for(lambda: not api.list("Job", namespace, jobs)["items"])
    store.delete(object_names.finished(group_id))
    for index in range(2):
        store.delete_all(f"jobs/{group_id}-{index}/")
    with pytest.raises(kinetic_core.KineticError, match="the stored payload is not the one"):
        square.run_async_map([2, 3], group_id=group_id).results()
    assert not Path(trace).exists()

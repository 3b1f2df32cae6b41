"""A training whose pod or machine is taken away goes on."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.names import NODE_SILENT
from tests.cluster.jobs import delete, evict, on_cpu, own_lines, pods
from tests.cluster.machine import NODES, PAIR, TPU_TAINT, add_to_pair, cluster_tool, give_up, restored
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("gke")


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The example's function."""
    from examples.checkpointed_training import train

    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(Path(__file__).parents[2] / "examples"))
    return train.__wrapped__


@pytest.mark.promise("data: `handle.outputs()` lists and downloads")
@pytest.mark.promise("data: A checkpoint example is killed and resumes")
@pytest.mark.promise(
    "batches: Resume from checkpoint: example, evicted through the eviction API",
    "spot, `retries=0`",
)
@pytest.mark.parametrize("take_away", [delete, evict])
def test_a_training_that_is_told_to_leave_goes_on_where_it_was(
    api: ClusterApi, train: Callable[..., Any], take_away: Callable[..., None], tmp_path: Path
) -> None:
    handle = kinetic_core.run(accelerator="gpu-l4-1:spot", retries=0)(train).run_async(60, 0.15)
    wait_for(lambda: len(handle.outputs()) >= 2, 90)
    (pod,) = pods(api, handle)
    take_away(api, pod)
    state = handle.result(stream_logs=False, cleanup=False, timeout=180)
    left = re.search(
        r"told to leave at step (\d+)\nbegins at step (\d+)(\n|$)", "\n".join(own_lines(handle.logs()))
    )
    assert left is not None
    assert state["step"] == 60
    assert state["begun_at"] == int(left[1]) == int(left[2]) >= 20
    assert handle.observe().attempt == 1
    (last,) = handle.outputs().download(tmp_path / "here", "*60.json")
    assert json.loads(last.read_text())["slope"] == state["slope"]
    handle.cleanup()


@pytest.mark.promise("data: A checkpoint example is killed and resumes")
@pytest.mark.promise("batches: … and by killing its node")
@pytest.mark.alone
@pytest.mark.slow
def test_a_training_whose_machine_dies_resumes(api: ClusterApi, train: Callable[..., Any]) -> None:
    with restored(api) as node:
        add_to_pair(api, node)
        on_pair = kinetic_core.run(accelerator="cpu", retries=0, node_selector=PAIR, tolerations=TPU_TAINT)
        handle = on_pair(train).run_async(200, 0.15)
        wait_for(lambda: len(handle.outputs()) >= 2, 90)
        add_to_pair(api, NODES[0])
        cluster_tool("lose", node)
        wait_for(lambda: handle.observe().reason == NODE_SILENT, 60)
        give_up(api, node)
        state = handle.result(timeout=180, stream_logs=False, cleanup=False)
    assert state["step"] == 200
    assert state["begun_at"] in range(20, 200, 10)
    assert "told to leave" not in (handle.logs() or "")
    assert handle.observe().attempt == 1
    handle.cleanup()


@pytest.mark.promise("gke: Exit codes 0, 1, 137, 143; SIGTERM during user code")
@pytest.mark.promise("batches: SIGTERM reaches user code")
@pytest.mark.promise("batches: Documented hook and `KINETIC_PREEMPTED` file")
@pytest.mark.promise("batches: Grace honoured", "12 of 30 s")
def test_an_evicted_function_hears_of_it_and_has_time_to_save(api: ClusterApi) -> None:
    @on_cpu
    def save_at_last() -> str:
        if int(os.environ["KINETIC_IGNORED_COUNT"] or 0):
            return "again"
        notice = Path(os.environ["KINETIC_PREEMPTED"])
        try:
            print("told before:", notice.exists(), flush=True)
            time.sleep(600)
        except SystemExit:
            print("told:", notice.exists(), flush=True)
            time.sleep(12)  # of the 30 seconds that there are
            raise
        finally:
            print("saved", flush=True)
        return "never"

    handle = save_at_last.run_async()
    wait_for(lambda: "told before" in (handle.logs() or ""), 60)
    (pod,) = pods(api, handle)
    evict(api, pod)
    assert handle.result(stream_logs=False, cleanup=False, timeout=180) == "again"
    assert (handle.logs() or "").splitlines() == ["told before: False", "told: True", "saved"]
    handle.cleanup()

"""Where Airflow keeps its logs in a bucket, pods write theirs beside them: seen live, and each line once,
whoever dies meanwhile, and whether the bucket takes them or not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import CLUSTER, Cases
from remote_airflow import emulator, give_sign, remote_airflow

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.cluster,
    pytest.mark.skipif(not CLUSTER, reason="no KUBECONFIG and KINETIC_TEST_IMAGE: see the cluster's README"),
]

LOGS = f"airflow-logs-{os.getpid()}"
"""A bucket of the logs alone."""


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cases]:
    """An Airflow of its own, with remote logs."""
    with remote_airflow(tmp_path_factory.mktemp("remote").resolve(), "remote_dags", LOGS) as running:
        yield running


def printed(log: str) -> list[int]:
    return [int(number) for number in re.findall(r"line (\d+) of the pod", log)]


@contextmanager
def refusing_pieces() -> Iterator[None]:
    """The bucket takes no object that must be new, as pods write theirs, and must have been asked to.

    The emulator's rules are everybody's: no other test beside this may make some.
    """
    pattern = rf"POST /upload/storage/v1/b/{LOGS}/o\?ifGenerationMatch=0&.*"
    emulator("POST", "emulator/faults", {"match": pattern, "status": 403, "times": 1000})
    try:
        yield
        rules = emulator("GET", "emulator/faults")
        assert [rule["hits"] > 0 for rule in rules if rule["match"] == pattern] == [True]
    finally:
        emulator("DELETE", "emulator/faults")


@pytest.mark.promise("airflow: Live while deferred")
@pytest.mark.promise(
    "airflow: Complete after pod, node and triggerer are gone",
    "triggerer killed while it waits; pod gone in the end",
)
@pytest.mark.promise(
    "airflow: Pods write into Airflow's remote prefix, create-only, past the triggerer",
    "emulator",
)
def test_lines_are_seen_while_deferred_and_once_in_the_end(talking: Any) -> None:
    """Its pod goes on, and its lines come, while no triggerer lives; in the end the pod has gone, too."""
    talking.start("talking")

    def seen(instance: dict[str, Any]) -> bool:
        log = talking.log("talking", "talk")  # the pod's lines may come before those of the trigger
        return instance["state"] == "deferred" and printed(log) != [] and "write their lines here" in log

    talking.reach("talking", "talk", seen, "to be deferred, and say in its log where its pod's lines come")
    triggerer = talking.airflow.processes.pop("triggerer")
    triggerer.kill()
    triggerer.wait()
    before = printed(talking.log("talking", "talk"))[-1]
    talking.reach(
        "talking", "talk", lambda _: printed(talking.log("talking", "talk"))[-1] > before + 10, "to say more"
    )
    give_sign("talk")
    talking.airflow.start_component("triggerer")
    assert talking.end("talking") == "failed"
    assert printed(talking.log("talking", "talk")) == list(range(talking.value("talking", "talk")))
    log = talking.log("talking", "failing")
    assert printed(log) == [0, 1, 2]
    assert log.index("line 2 of the pod") < log.index("ValueError: at the end")
    pieces = Path(talking.airflow.home, "logs")
    assert not list(pieces.rglob("*.kinetic*")), "the pods' pieces are in the bucket"


@pytest.mark.promise("airflow: Where it cannot, the worker copies on resume")
def test_what_the_bucket_refuses_is_logged_before_the_verdict(talking: Any) -> None:
    from kinetic_core.store.gcs import GcsObjectStore

    with refusing_pieces():
        assert talking.end("refused") == "failed"
    log = talking.log("refused", "talk")
    assert printed(log) == [0, 1, 2]
    assert log.index("line 2 of the pod") < log.index("ValueError: at the end")
    pieces = GcsObjectStore.at(f"{LOGS}/ours").list("dag_id=refused/")
    assert [info.name for info in pieces if ".kinetic." in info.name] == []

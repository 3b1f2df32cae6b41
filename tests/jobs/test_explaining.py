"""Every second of a job's life has one cause."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core import Data
from kinetic_core.backends.kubernetes.names import CONTAINER, FAILED_COUNT
from kinetic_core.jobs.phases import Phase
from kinetic_core.jobs.timeline import phases


def stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def pod(
    attempt: int, created: float, scheduled: float, started: float, ended: float | None
) -> dict[str, Any]:
    state = {"terminated": {"startedAt": stamp(started), "finishedAt": stamp(ended)}} if ended else {}
    return {
        "metadata": {"creationTimestamp": stamp(created), "annotations": {FAILED_COUNT: str(attempt)}},
        "status": {
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(scheduled)}
            ],
            "containerStatuses": [
                {"name": CONTAINER, "state": state or {"running": {"startedAt": stamp(started)}}}
            ],
        },
    }


@pytest.mark.promise("gke: `explain()`: each second, its cause, what would shorten it")
def test_the_phases_of_two_attempts_have_no_gap() -> None:
    pods = [pod(0, 1010, 1070, 1100, 1150), pod(1, 1160, 1161, 1165, 1300)]
    times = {"started": 1165.5, "user_started": 1170.5, "user_finished": 1290.0, "finished": 1299.0}
    found = list(phases(1000.0, {}, pods, [], {"attempt": 1, "times": times}, 2000.0))
    assert [(phase.name, phase.attempt, phase.seconds) for phase in found] == [
        ("upload", 0, 10),
        ("scheduling", 0, 60),
        ("container", 0, 30),
        ("running", 0, 50),
        ("replacement", 0, 10),
        ("scheduling", 1, 1),
        ("container", 1, 4),
        ("start", 1, 5.5),
        ("function", 1, 119.5),
        ("result", 1, 9),
    ]
    assert sum(phase.seconds for phase in found) == 299


def test_of_marks_in_one_second_the_last_phase_counts() -> None:
    found = list(phases(1000.0, {}, [pod(0, 1001, 1001, 1001, None)], [], {}, 1060.0))
    assert [(phase.name, phase.seconds) for phase in found] == [("queue", 1), ("running", 59)]


def test_packages_and_data_are_told_apart_from_the_start() -> None:
    times = {"started": 1010.5, "installing": 1011.0, "installed": 1041.0, "data": 1042.0}
    times |= {"user_started": 1102.0, "user_finished": 1110.0, "finished": 1110.0}
    outcome = {"attempt": 0, "times": times}
    found = list(phases(1000.0, {}, [pod(0, 1001, 1002, 1010, 1110)], [], outcome, 2000.0))
    named = [(phase.name, phase.seconds) for phase in found]
    assert named[-5:] == [("start", 1), ("dependencies", 30), ("start", 1), ("data", 60), ("function", 8)]


def test_waiting_for_the_other_hosts_of_a_slice_is_told_apart() -> None:
    times = {"started": 1012.0, "gathered": 1100.0, "user_started": 1101.0, "user_finished": 1111.0}
    outcome = {"attempt": 0, "times": {**times, "finished": 1112.0}}
    found = list(phases(1000.0, {}, [pod(0, 1001, 1002, 1010, 1112)], [], outcome, 2000.0))
    named = [(phase.name, phase.seconds) for phase in found]
    assert named[-5:] == [("start", 2), ("hosts", 88), ("start", 1), ("function", 10), ("result", 1)]


def test_the_time_before_the_accelerator_it_got_is_told_apart() -> None:
    found = list(phases(1000.0, {}, [pod(0, 1602, 1603, 1610, None)], [], {}, 1700.0, 1601.0))
    named = [(phase.name, phase.seconds) for phase in found]
    assert named[:3] == [("capacity", 601), ("queue", 1), ("scheduling", 1)]


def test_a_job_that_waits_is_explained_until_now() -> None:
    waiting = {"metadata": {"creationTimestamp": stamp(1002)}, "status": {}}
    found = list(phases(1000.0, {}, [waiting], [], {}, 1062.0))
    assert [(phase.name, phase.seconds) for phase in found] == [("queue", 2), ("scheduling", 60)]
    assert "no node was free" in found[-1].advice


def test_events_tell_scale_ups_and_pulls() -> None:
    waited = pod(0, 1001, 1201, 1300, None)
    waited["metadata"]["name"] = "mine"

    def event(name: str, reason: str, at: float) -> dict[str, Any]:
        return {"involvedObject": {"name": name}, "reason": reason, "firstTimestamp": stamp(at)}

    events = [
        event("mine", "TriggeredScaleUp", 1011),
        event("another", "Pulling", 1020),
        event("mine", "Pulling", 1202),
        event("mine", "Pulled", 1290),
        event("mine", "Created", 1291),
    ]
    found = list(phases(1000.0, {}, [waited], events, {}, 1310.0))
    assert [(phase.name, phase.seconds) for phase in found] == [
        ("queue", 1),
        ("scheduling", 10),
        ("scale-up", 190),
        ("container", 1),
        ("image", 88),
        ("container", 10),
        ("running", 10),
    ]


def test_a_pull_in_the_same_second_does_not_hide_the_start() -> None:
    quick = pod(0, 1001, 1001, 1001, 1003)
    quick["metadata"]["name"] = "mine"
    pulled = {"involvedObject": {"name": "mine"}, "reason": "Pulled", "firstTimestamp": stamp(1001)}
    times = {"started": 1001.5, "user_started": 1002.0, "user_finished": 1002.5, "finished": 1003.0}
    found = list(phases(1000.0, {}, [quick], [pulled], {"attempt": 0, "times": times}, 2000.0))
    assert [phase.name for phase in found] == ["upload", "start", "function", "result"]


def ended_job(at: float) -> dict[str, Any]:
    complete = {"type": "Complete", "status": "True", "lastTransitionTime": stamp(at)}
    return {"metadata": {"creationTimestamp": stamp(1000)}, "status": {"conditions": [complete]}}


@pytest.mark.parametrize("kubelet", [False, True], ids=["the runner", "the whole node"])
@pytest.mark.parametrize("minutes", [-10, 0, 10])
def test_the_clock_of_a_node_may_be_wrong(minutes: int, kubelet: bool) -> None:
    """It began and ended where the API server saw it; how long all took is as the runner measured it."""
    wrong = 60.0 * minutes
    times = {"started": 1004.5, "user_started": 1005.0, "user_finished": 1035.0, "finished": 1036.0}
    told = {"attempt": 0, "times": {name: at + wrong for name, at in times.items()}}
    node = wrong if kubelet else 0.0
    ran = pod(0, 1001, 1002, 1004 + node, 1036 + node)
    found = {phase.name: phase.seconds for phase in phases(1000.0, ended_job(1037), [ran], [], told, 2000.0)}
    assert (found["queue"], found["scheduling"], found["function"], found["result"]) == (1, 1, 30, 1)
    assert sum(found.values()) == pytest.approx(37)
    named = {"queue", "scheduling", "container", "start", "function", "result", "termination"}
    assert found.keys() <= named


@pytest.mark.parametrize("minutes", [-10, 10])
def test_the_clock_of_the_submitter_may_be_wrong(minutes: int) -> None:
    wrong = 60.0 * minutes
    times = {"started": 1004.5, "user_started": 1005.0, "user_finished": 1035.0, "finished": 1036.0}
    told = {"attempt": 0, "times": times}
    ran = pod(0, 1001, 1002, 1004, 1036)
    found = list(phases(1000.0 + wrong, ended_job(1037), [ran], [], told, 2000.0 + wrong))
    waited = [Phase("upload", 0, 1000.0 + wrong, -wrong)] if wrong < 0 else []
    assert found[: len(waited) + 1] == [*waited, Phase("queue", 0, 1000.0, 1)]
    assert [phase.name for phase in found[len(waited) :]] == [
        "queue",
        "scheduling",
        "container",
        "start",
        "function",
        "result",
        "termination",
    ]


@pytest.mark.usefixtures("local_jobs")
def test_it_can_be_printed(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("data")
    handle = kinetic_core.run(accelerator="cpu")(lambda _: time.sleep(0.2)).run_async(Data(str(tmp_path)))
    handle.result(cleanup=False)
    text = str(handle.explain())
    assert text.startswith(f"{handle.job_id} is SUCCEEDED (Completed)")
    assert "data: the runner fetched the data" in text
    assert "function: your own code" in text
    handle.cleanup()


def test_one_machine_has_neither_nodes_nor_quotas(no_slot_is_free: Callable[[], None]) -> None:
    handle = kinetic_core.run(accelerator="cpu")(abs).run_async(-1)
    waits = next(phase for phase in handle.explain().phases if phase.name == "queue")
    assert waits.advice.startswith("it waited for CPU slots of this machine")
    no_slot_is_free()
    handle.result(cleanup=False)
    assert not set(re.findall(r"\w+", str(handle.explain()))) & {"node", "pod", "quota"}
    handle.cleanup()


def test_a_quick_job_does_not_wait_in_a_queue_that_it_never_saw() -> None:
    """Kubernetes' second may begin before the submission that it follows."""
    times = {"started": 1000.95, "user_started": 1000.97, "user_finished": 1001.08, "finished": 1001.09}
    outcome = {"attempt": 0, "times": times}
    found = {
        one.name: one.seconds
        for one in phases(1000.9, {}, [pod(0, 1000, 1000, 1000, 1001)], [], outcome, 2000.0)
    }
    assert found.keys() == {"start", "function", "result"}
    assert sum(found.values()) == pytest.approx(0.19)


def test_uploads_and_attempts_without_a_pod_are_no_queue() -> None:
    job = {"metadata": {"creationTimestamp": stamp(1030)}, "status": {}}
    first = {"started": 1040.0, "user_started": 1041.0, "user_finished": 1061.0, "finished": 1062.0}
    second = {"started": 1070.0, "user_started": 1071.0, "user_finished": 1081.0, "finished": 1082.0}
    outcome = {"attempt": 1, "times": second}
    found = list(phases(1000.0, job, [], [], outcome, 2000.0, None, {0: first}))
    assert [(phase.name, phase.attempt, phase.seconds) for phase in found] == [
        ("upload", 0, 30),
        ("queue", 0, 10),
        ("start", 0, 1),
        ("function", 0, 20),
        ("result", 0, 1),
        ("replacement", 0, 8),
        ("start", 1, 1),
        ("function", 1, 10),
        ("result", 1, 1),
    ]


@pytest.mark.usefixtures("local_jobs")
def test_a_handle_says_what_its_job_has_used() -> None:
    handle = kinetic_core.run(accelerator="cpu:2")(time.sleep).run_async(0.3)
    handle.result(cleanup=False)
    usage = handle.usage()
    assert (usage.job_id, usage.unit, usage.units) == (handle.job_id, "core", 2)
    assert usage.held >= usage.unit_seconds["running"] >= 2 * 0.3
    assert f"{usage.held:.1f} core-seconds" in usage._repr_html_()
    handle.cleanup()

"""Attempts that printed nothing hide none of the lines of later ones in a task's log."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider.task_logs import Cursor, LogTail
from kinetic_core._runner import object_names
from kinetic_core.testing.memory_store import MemoryObjectStore
from tests.kubernetes.manifests import reference

JOB = reference(accelerator="cpu")


class Pods:
    """Logs of the pods of a job that are still there, by attempt; `stored` is in the store alone."""

    def __init__(self, kept: dict[int, bytes], stored: dict[int, bytes] | None = None) -> None:
        self.kept = kept
        self.store = MemoryObjectStore()
        for attempt, text in (stored or {}).items():
            for number, chunk in enumerate(text.splitlines(keepends=True)):
                self.store.create_if_absent(object_names.log(JOB.job_id, attempt, number), chunk)

    def log(
        self, _namespace: str, _job_id: str, attempt: int, offset: int, _host: int = 0, size: int = -1
    ) -> bytes | None:
        text = self.kept.get(attempt)
        return None if text is None else text[offset:][: None if size < 0 else size]


def title(attempt: int) -> str:
    return f"attempt {attempt + 1} of {JOB.job_id}"


@pytest.mark.parametrize("silent", [{}, {1: b"", 2: b""}], ids=["without a pod", "empty"])
def test_lines_behind_silent_attempts_are_shown_live(silent: dict[int, bytes]) -> None:
    pods: Any = Pods({0: b"one\n"})
    tail = LogTail(pods, JOB)
    assert tail.live(10, 0) == ["one"]
    pods.kept |= silent | {3: b"four\n"}
    assert tail.live(10, 3) == [title(3), "four"]
    assert LogTail(pods, JOB, Cursor.from_list(tail.cursor.to_list())).rest(3) == []


def test_lines_of_a_pod_that_is_gone_are_not_passed_over() -> None:
    """They are shown in their turn: no later reader goes back to them."""
    pods: Any = Pods({3: b"four\n"}, stored={0: b"one\nhalf", 2: b"three\n3\n"})
    tail = LogTail(pods, JOB)
    shown = [line for line in tail.live(10, 3) if "group::" not in line]
    assert shown == ["one", "half", "three", "3", title(3), "four"]
    assert tail.rest(3) == []


@pytest.mark.attack
def test_of_many_silent_attempts_few_requests_are_made() -> None:
    """Each is asked for once, however often somebody looks, and however many there are."""
    pods: Any = Pods({1500: b"last\n"})
    tail = LogTail(pods, JOB)
    assert tail.live(10, 1500) == [title(1500), "last"]
    for _ in range(10):
        assert tail.live(10, 1500) == []
    assert len(pods.store.requests) <= 1500

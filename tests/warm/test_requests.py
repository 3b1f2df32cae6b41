"""Requests of a warm call: how many there are, and which of them wait for another."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.backends.kubernetes.backend import GkeBackend
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.connections import Connections
from kinetic_core.errors import ConfigurationError
from tests.conftest import wait_for
from tests.warm.places import Call, Cluster
from tests.warm.test_calls import begun, held, whoami

JOBS = "/apis/batch/v1/namespaces/default/jobs"
MAIN = threading.main_thread().name


class RecordedStore:
    """A store, with its requests, the thread and what is asked for, and the names that were listed."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.requests: list[tuple[str, str, str]] = []
        self.listed: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def asked(*arguments: Any, **options: Any) -> Any:
            self.requests.append((threading.current_thread().name, name, kind(arguments[0])))
            answer = found(*arguments, **options)
            if name == "list":
                answer = list(answer)
                self.listed += [info.name for info in answer]
            return answer

        return asked

    def of_main_thread(self) -> list[tuple[str, str]]:
        return [(name, what) for thread, name, what in self.requests if thread == MAIN]


def kind(name: Any) -> str:
    """The name of an object without what differs between calls."""
    if not isinstance(name, str):
        return "several"
    return (
        name.split("/")[0]
        if name.startswith(("index/", "runners/"))
        else name.split("/")[2].partition("-")[0]
    )


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def submit_afresh(place: Cluster, word: str) -> tuple[Call, RecordedStore]:
    """Submit as a process does that has asked for nothing before."""
    dialled = place.fake.faults.count("portforward")
    before, store = place.backend, RecordedStore(place.backend.store)
    target = Target(str(place.folder / "kubeconfig"))
    place.backend = GkeBackend(target, "bucket", Connections(place.settings()))
    place.backend.store = store
    call = place.submit(whoami, word)
    wait_for(lambda: place.fake.faults.count("portforward") > dialled)
    place.backend.end_watch("default")
    place.backend = before
    return Call.at(before, call), store


def test_a_warm_call_waits_for_few_requests(place: Cluster) -> None:
    """One after the other: for the project, account, workers, what is stored, the Job, the note."""
    place.submit(whoami, "first").value()
    submit_afresh(place, "second")[0].value()
    seen = len(place.fake.faults.requests)
    call, store = submit_afresh(place, "third")
    assert store.of_main_thread() == [
        ("present", "several"),
        ("find", "runners"),  # in a bucket the request before has looked for it
        ("create_if_absent", "handle.json"),
        ("create_if_absent", "calls"),
    ]
    beside = [request[1:] for request in store.requests if request[0] == "kinetic-request"]
    assert sorted(beside) == [
        ("create_if_absent", "index"),
        ("create_if_absent", "payload"),
        ("list", "calls"),
        ("read_range", "result"),
    ]
    asked = [each.line.partition("?")[0] for each in place.fake.faults.requests[seen:]]
    asked = [line for line in asked if "portforward" not in line and not line.startswith("PATCH")]
    first, *at_once, last = asked
    assert (first, last) == ("GET /api/v1/namespaces/default/serviceaccounts/kinetic", f"POST {JOBS}")
    assert set(at_once) == {f"GET {JOBS}", "GET /api/v1/namespaces/default/secrets/kinetic-signing"}
    assert call.value()[0] == "third"
    assert [name.rpartition("/")[2] for name in store.listed] == ["00000001.json"]  # of two


def memory(place: Cluster) -> Path:
    """The file that remembers the last call."""
    (found,) = (place.cache / "workers").iterdir()
    return found


def test_what_the_cache_remembers_is_not_believed(place: Cluster) -> None:
    """Another machine has given a call since then, or the file is broken."""
    first = place.submit(whoami, "first")
    first.value()
    old = memory(place).read_bytes()
    place.submit(whoami, "second").value()
    memory(place).write_bytes(old)
    third = place.submit(whoami, "third")
    assert (third.worker, third.value()[0]) == (first.worker, "third")
    wrong = [old.replace(b'"number": 0', b'"number": ' + number) for number in (b'"x"', b"1000")]
    for content in (b"", b"{", b"[]", b'{"worker_id": 1}', *wrong):
        memory(place).write_bytes(content)
        call = place.submit(whoami, "again")
        assert (call.worker, call.value()[0]) == (first.worker, "again")


def test_a_busy_worker_is_not_taken_for_a_free_one(place: Cluster, tmp_path: Path) -> None:
    """The file names the call that the worker runs."""
    running = place.submit(held, str(tmp_path))
    wait_for(lambda: begun(tmp_path))
    assert running.job_id in memory(place).read_text()
    other = place.submit(whoami, "other")
    assert other.worker != running.worker
    assert other.value()[0] == "other"
    (tmp_path / "go").touch()
    assert running.value() == "value"


def test_nothing_is_left_of_a_call_without_its_worker(place: Cluster) -> None:
    place.fake.faults.answer(f"POST {JOBS}", 403, skip=1)
    with pytest.raises(ConfigurationError, match="may not create jobs"):
        place.submit(whoami, "one")
    assert place.fake.objects.list("Job", "default")[1] == []
    stored = [info.name for prefix in ("jobs/", "index/") for info in place.backend.store.list(prefix)]
    assert [name for name in stored if "/calls/" not in name] == []


def test_a_call_without_its_worker_that_stays_is_named(place: Cluster, caplog: Any) -> None:
    place.fake.faults.answer(f"POST {JOBS}", 403, skip=1)
    place.fake.faults.answer(f"(PATCH|DELETE) {JOBS}", 403, times=None)
    with pytest.raises(ConfigurationError, match="may not create jobs"):
        place.submit(whoami, "one")
    assert re.search("`kinetic jobs cancel job-[0-9a-f]+` ends it", caplog.text)
    place.fake.faults.clear()

"""Objects that somebody without the job's key has put where the runner looks for its own."""

from __future__ import annotations

import io
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from kinetic_core._runner import codec, object_names, wire
from kinetic_core._runner.notes import ForgedNote, decode_note, encode_note
from kinetic_core._runner.payload import Payload
from kinetic_core.errors import JobMisconfigured, UnverifiedResult
from tests.runner.attempts import JOB, KEY, Attempts
from tests.runner.test_gang import codes, start

pytestmark = pytest.mark.attack


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    return Attempts(tmp_path)


def forged(state: str, key: bytes | None = None, job_id: str = JOB) -> bytes:
    header = {"protocol": 1, "job_id": job_id, "state": state, "codec": "typed", "attempt": 0}
    return wire.encode_frame(header, codec.encode("forged"), key)


FORGERIES = {
    "unsigned": forged("succeeded"),
    "unsigned failure": forged("failed"),
    "signed with another key": forged("succeeded", b"another"),
    "signed for another job": forged("succeeded", KEY, "job-00000000000000bb"),
    "no frame": b"{}",
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_result_is_replaced_by_the_outcome(attempts: Attempts, forgery: bytes) -> None:
    attempts.submit(lambda: "true").store.create_if_absent(object_names.result(JOB), forgery)
    assert attempts.run() == wire.EXIT_SUCCEEDED
    assert attempts.outcome().value_or_raise() == "true"
    assert "somebody has forged it" in attempts.log


def test_a_result_forged_during_the_run_is_replaced(attempts: Attempts) -> None:
    place, frame = attempts.folder / "store" / object_names.result(JOB), FORGERIES["unsigned"]

    def fail() -> None:
        place.write_bytes(frame)
        raise ValueError("true")

    assert attempts.submit(fail).run() == wire.EXIT_USER_ERROR
    with pytest.raises(ValueError, match="true"):
        attempts.outcome().value_or_raise()


def test_a_failed_attempt_is_no_outcome_under_its_name(attempts: Attempts) -> None:
    """What an attempt has signed that others follow does not end the job."""
    marker = attempts.folder / "marker"

    def work() -> str:
        if not marker.exists():
            marker.write_text("")
            raise ValueError("the first time")
        return "true"

    attempts.retries = 1
    assert attempts.submit(work).run() == wire.EXIT_USER_ERROR
    copied = attempts.store.read(object_names.attempt_outcome(JOB, 0))
    attempts.store.create_if_absent(object_names.result(JOB), copied)
    with pytest.raises(UnverifiedResult, match=r"it was signed as jobs/.*/attempts/0/outcome"):
        attempts.outcome()
    attempts.failed = 1
    assert attempts.run() == wire.EXIT_SUCCEEDED
    assert attempts.outcome().value_or_raise() == "true"


class References(pickle.Pickler):
    """Writes each tuple as what a payload refers to."""

    def persistent_id(self, obj: Any) -> Any:
        return obj if isinstance(obj, tuple) else None


def test_a_value_in_another_store_is_not_read(tmp_path: Path) -> None:
    frame = wire.encode_frame({"protocol": 1, "codec": "typed"}, codec.encode("value"))
    pods, others = tmp_path / "own", tmp_path / "elsewhere"
    for folder in (pods, others):
        folder.mkdir()
        (folder / "result").write_bytes(frame)
    written = io.BytesIO()
    References(written).dump([("result", f"file://{others}", "result", wire.head_digest(frame))])

    def arguments(store_uri: str) -> Any:
        parts = {"arguments": written.getvalue(), "argument_copies": b""}
        return Payload(parts, [], "", str, store_uri).load_arguments()

    assert arguments(f"file://{others}") == ["value"]
    with pytest.raises(pickle.UnpicklingError, match="elsewhere, and this job reads"):
        arguments(f"file://{pods}")


class Planted:
    """Leaves a trace where it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trace),)


def test_a_value_that_was_exchanged_is_not_unpickled(tmp_path: Path) -> None:
    """What a job takes from another job is that which its payload names by digest."""
    uri, trace = f"file://{tmp_path}", tmp_path / "trace"
    genuine = wire.encode_frame({"protocol": 1, "codec": "typed"}, codec.encode("value"))
    body = pickle.dumps(Planted(trace))
    (tmp_path / "result").write_bytes(wire.encode_frame({"protocol": 1, "codec": "pickle"}, {"body": body}))
    written = io.BytesIO()
    References(written).dump([("result", uri, "result", wire.head_digest(genuine))])
    parts = {"arguments": written.getvalue(), "argument_copies": b""}
    with pytest.raises(wire.SignatureError, match="it changed since it was referred to"):
        Payload(parts, [], "", str, uri).load_arguments()
    assert not trace.exists()


def test_an_outcome_that_came_too_late_replaces_none(attempts: Attempts) -> None:
    """Of an attempt that finds another's: it is kept as the attempt's, and in no other place."""
    place = attempts.folder / "store" / object_names.result(JOB)

    def work() -> str:
        place.write_bytes(forged("failed", KEY))
        return "late"

    assert attempts.submit(work).run() == wire.EXIT_NEVER_RETRY
    place.write_bytes(attempts.store.read(object_names.attempt_outcome(JOB, 0)))
    with pytest.raises(UnverifiedResult, match="it was signed as"):
        attempts.outcome()


@pytest.mark.parametrize("name", ["end", "host-0", "start", "stop"])
def test_hosts_believe_no_forged_word_of_each_other(attempts: Attempts, name: str) -> None:
    """What a slice's hosts agreed on would end the job as succeeded, or start user code on one alone."""

    def work() -> None:
        if os.environ["KINETIC_HOST_INDEX"] == "1":
            time.sleep(60)  # host 0 waits for it, and looks for `stop`

    attempts.submit(work)
    told = {"kind": "succeeded", "final": True, "host": 1, "pod": "uid", "by": 1, "failed": 0}
    place = object_names.rendezvous(JOB, 0, name)
    attempts.store.create_if_absent(place, encode_note(b"another key", place, told))
    hosts = [start(attempts, 0), start(attempts, 1)]
    try:
        assert hosts[0].wait(timeout=60) == wire.EXIT_NEVER_RETRY
    finally:
        for host in hosts:
            host.kill()
            host.wait()
    with pytest.raises(JobMisconfigured, match=f"gang/0/{name} is not what this job has stored"):
        attempts.outcome().value_or_raise()


def test_signed_words_of_hosts_count_under_their_name_only(attempts: Attempts) -> None:
    attempts.submit(lambda: "value")
    assert codes(start(attempts, 0), start(attempts, 1)) == [0, 0]
    end = attempts.store.read(object_names.rendezvous(JOB, 0, "end"))
    attempts.store.delete_all(f"jobs/{JOB}/gang/")
    attempts.store.delete(object_names.result(JOB))
    attempts.store.create_if_absent(object_names.rendezvous(JOB, 0, "stop"), end)
    host = start(attempts, 0, ignored=1)
    wait = start(attempts, 1, ignored=1)
    try:
        assert host.wait(timeout=60) == wire.EXIT_NEVER_RETRY
    finally:
        wait.kill()
        wait.wait()


def test_forged_costs_and_deaths_are_not_counted(attempts: Attempts) -> None:
    for attempt in range(4):
        spent, memory = object_names.spending(JOB, attempt, 0), object_names.memory(JOB, attempt)
        attempts.store.create_if_absent(spent, b'{"seconds": 1e9}')
        attempts.store.create_if_absent(
            memory, encode_note(b"another key", memory, {"memory_limit": 1, "memory_peak": 1})
        )
    attempts.ignored = 4
    assert attempts.submit(lambda: "paid").run(KINETIC_BUDGET="1 1 EUR") == wire.EXIT_SUCCEEDED
    assert attempts.outcome().value_or_raise() == "paid"


def test_an_empty_key_signs_no_note() -> None:
    """Everybody knows it: a reader that has found no key believes nothing."""
    with pytest.raises(ForgedNote, match="somebody without its key"):
        decode_note(b"", "note", encode_note(b"", "note", {"told": 1}))

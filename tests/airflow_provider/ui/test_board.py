"""The board of a batch, from real batches of this machine and from records of some that have ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.batch_of_task import batch_id, cancel_batch, is_over
from airflow_provider.batch_record import MARKED, BatchRecord, Cause, record_of_cancelled
from airflow_provider.ui.board import LARGEST, Failures, board, input_detail, without_texts
from airflow_provider.ui.rows import HIDDEN, Filters, Instance, page, row, without_exceptions
from kinetic_core._runner import object_names, wire
from kinetic_core.backends.kubernetes.names import HOST_INDEX
from kinetic_core.backends.local.backend import LocalBackend
from kinetic_core.batches.outcomes import SUCCEEDED, StoredBatch
from kinetic_core.testing import kubelet as behaviours
from kinetic_core.testing.kubelet import PodBehaviour
from tests.airflow_provider.batches import ended, home, start
from tests.airflow_provider.records_of_jobs import DAG, RUN, identity, reference
from tests.batches.places import Place
from tests.conftest import wait_for

IDENTITY = identity("embed")


def record(size: int = 10, **changes: Any) -> BatchRecord:
    own = batch_id(IDENTITY, 1)
    whole = reference(own, group_id=own)
    return replace(BatchRecord(whole, size, IDENTITY.run_began, 1, 1), **changes)


def instance(told: BatchRecord, state: str = "deferred") -> Instance:
    return Instance("embed", -1, "", state, 1, None, run_id=RUN, dag_id=DAG, batch=told)


def look(told: BatchRecord, backend: Any, state: str = "deferred", offset: int = 0) -> dict[str, Any]:
    return board(instance(told, state), told, backend, offset, Failures())


CAUSES = (Cause("ValueError: hunter2", "user error", 2, (3, 4)), Cause("no memory", "out of memory", 1, (7,)))


def test_a_row_tells_of_a_batch_what_airflow_knows() -> None:
    alive = row(instance(record()), None)
    assert (alive["status"], alive["inputs"], alive["message"]) == ("RUNNING", 10, "10 inputs")
    over = record(failed=3, missing="3,4,7")
    failed = row(instance(over, "failed"), None)
    text = "3 of 10 inputs have no value"
    assert (failed["status"], failed["reason"], failed["message"]) == ("FAILED", "inputs failed", text)
    assert without_exceptions(failed)["message"] == text, "it quotes nobody"
    allowed = row(instance(over, "success"), None)
    assert (allowed["status"], allowed["message"]) == ("SUCCEEDED", text)
    assert row(instance(record(failed=0), "success"), None)["status"] == "SUCCEEDED"
    assert row(instance(record(), "failed"), None)["status"] == "UNKNOWN"
    shown = page([alive, failed], Filters(reason="inputs failed"), 0, 10)
    assert (shown["total"], shown["statuses"]) == (1, {"RUNNING": 1, "FAILED": 1})


def test_a_row_says_what_has_ended_a_batch() -> None:
    over = record(failed=7, missing="3-9", ended_by="execution_timeout has passed")
    shown = row(instance(over, "failed"), None)
    assert (shown["status"], shown["reason"]) == ("CANCELLED", "Cancelled")
    assert shown["message"] == "execution_timeout has passed: 3 of 10 inputs have a value"


@pytest.mark.usefixtures("local_jobs")
def test_a_cancelled_batch_is_recorded_with_its_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(Path(__file__).parents[1]))  # where its function is
    who = replace(IDENTITY, run_began=tmp_path.name)
    whole = start(who, range(6), tmp_path).reference
    value = BatchRecord(whole, 6, who.run_began, 1, 1).to_dict()
    backend = home(whole)
    cancel_batch(backend, whole.job_id)
    wait_for(lambda: is_over(backend, whole))
    told = record_of_cancelled(value, backend, whole, 1, MARKED)
    assert told is not None
    assert None not in (told.run_seconds, told.seconds, told.waited)
    states = StoredBatch(backend, whole).states()
    assert told.failed == 6 - sum(state == SUCCEEDED for state in states.values())
    read = BatchRecord.from_value(told.to_dict())
    assert read is not None
    assert (read.failed, read.ended_by) == (told.failed, "somebody has ended the task")
    assert record_of_cancelled(value, backend, whole, 2, MARKED) is None, "a later try runs it"
    assert record_of_cancelled(told.to_dict(), backend, whole, 1, MARKED) is None


def test_a_batch_that_has_ended_costs_no_request() -> None:
    told = record(failed=3, missing="3-4,7", causes=CAUSES)
    shown = look(told, "nobody knows where it was", "failed")
    assert shown["squares"] == "sssffssfss"
    assert (shown["counts"], shown["troubles"]) == ({"s": 7, "f": 3}, [])
    assert [(each["text"], each["inputs"]) for each in shown["causes"]] == [
        ("ValueError: hunter2", [3, 4]),
        ("no memory", [7]),
    ]


def test_a_large_batch_has_several_boards() -> None:
    told = record(25_000, failed=1, missing="20005")
    last = look(told, "", "success", offset=2 * LARGEST)
    assert (len(last["squares"]), last["squares"].index("f"), last["offset"]) == (5000, 5, 2 * LARGEST)
    assert last["counts"] == {"s": 24_999, "f": 1}
    assert look(told, "", "success", offset=30_000)["squares"] == ""


@pytest.mark.promise("page: What a function raised is told only to who may read task logs")
@pytest.mark.attack
def test_exceptions_are_for_who_may_read_logs() -> None:
    shown = without_texts(look(record(failed=3, missing="3-4,7", causes=CAUSES), "", "failed"))
    assert [each["text"] for each in shown["causes"]] == [HIDDEN, "no memory"]


@pytest.mark.promise("scale: A grid of 10,000 squares: state, reason, log, attempts of each")
@pytest.mark.promise("page: A batch's inputs, each with state, reason, attempts and log")
@pytest.mark.usefixtures("local_jobs")
def test_a_batch_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(Path(__file__).parents[1]))  # where its function is
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(Path(__file__).parents[1]))  # where its function is
    who = replace(IDENTITY, run_began=tmp_path.name)
    started = start(who, range(6), tmp_path)
    ended(started)
    told = BatchRecord(started.reference, 6, who.run_began, 1, 1)
    failures, backend = Failures(), home(started.reference)
    shown = board(instance(told), told, backend, 0, failures)
    assert (shown["squares"], shown["counts"], shown["troubles"]) == ("sfsfsf", {"s": 3, "f": 3}, [])
    assert shown["environment"] == f"KINETIC_LOCAL_STORE={backend.connections.settings.local_store}"
    (cause,) = shown["causes"]
    assert (cause["text"], cause["count"], cause["inputs"]) == ("ValueError: odd", 3, [1, 3, 5])
    one = input_detail(told, 3, backend)
    assert (one["status"], one["reason"], one["attempts"]) == ("FAILED", "user error", 1)
    assert one["message"] == "ValueError: odd"
    assert one["traceback"].endswith("ValueError: odd\n")
    good = input_detail(told, 2, backend)
    assert good["environment"] == shown["environment"]
    assert (good["status"], good["silence"]) == ("SUCCEEDED", "it printed nothing")
    backend.store.delete_all(f"jobs/{started.reference.job_id}-3/")
    removed = input_detail(told, 3, backend)
    assert (removed["status"], removed["silence"]) == ("NO_JOB", "no line of it is stored")
    again = board(instance(told), told, backend, 0, failures)
    assert again["causes"] == shown["causes"], "what is known is not read again"
    backend.store.delete_all(f"batches/{started.reference.job_id}/")
    gone = input_detail(replace(told, reference=started.reference), 2, backend)
    assert (gone["status"], gone["troubles"]) == ("NO_JOB", [])


@pytest.mark.promise("scale: A grid of 10,000 squares: state, reason, log, attempts of each")
@pytest.mark.promise("scale: Progress in the log, and on the page")
@pytest.mark.promise("page: A batch's inputs, each with state, reason, attempts and log")
def test_a_batch_of_a_cluster_while_it_goes_on(tmp_path: Path) -> None:
    def behave(pod: dict[str, Any]) -> PodBehaviour:
        index = int(pod["metadata"]["labels"][HOST_INDEX])
        if index == 0:
            here.tell(pod)
            return behaviours.succeeds()
        return behaviours.runs_out_of_memory() if index == 1 else behaviours.runs_until_stopped()

    here = Place(tmp_path, behave)
    whole, _ = here.submit([1, 2, 3])
    told = record(3, reference=whole)
    wait_for(lambda: look(told, here.backend)["squares"] == "sfr")
    (cause,) = look(told, here.backend)["causes"]
    assert (cause["reason"], cause["inputs"]) == ("out of memory", [1])
    here.store.create_if_absent(object_names.result("grp-a-2"), b"planted", {wire.STATE: "succeeded"})
    here.store.create_if_absent(object_names.result("grp-a-99999999"), b"", {wire.STATE: "failed"})
    shown = look(told, here.backend)
    assert (shown["squares"], Counter(shown["squares"])) == ("sfr", shown["counts"])
    here.store.create_if_absent(object_names.log("grp-a-2", 0, 0), b"one\ntwo\n")
    running = input_detail(told, 2, here.backend)
    assert (running["status"], running["attempts"], running["log"]) == ("RUNNING", 1, ["one", "two"])
    here.close()


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert look(record(), "no such connection")["troubles"] == ["no such connection"]
    backend = LocalBackend(tmp_path)
    assert "too many" in look(record(300_000), backend)["troubles"][0]
    shown = input_detail(record(), 3, "no such connection")
    assert (shown["status"], shown["troubles"]) == ("UNKNOWN", ["no such connection"])

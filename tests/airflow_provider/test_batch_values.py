"""The value of a task that ran a batch: a sequence of which nothing is read before it is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.access import ENVIRONMENT, Access
from airflow_provider.batch_values import BatchValues
from airflow_provider.job_of_task import TaskIdentity
from airflow_provider.xcom import Signatures, with_references
from kinetic_core.connections import default_connections
from kinetic_core.errors import InvalidRequest
from kinetic_core.job import JobReference
from tests.airflow_provider.batches import ended, square, start
from tests.airflow_provider.test_signatures import Kept, OfTeam

REFERENCE = {
    **dict.fromkeys(JobReference.__dataclass_fields__, ""),
    **dict.fromkeys(("group_id", "group_kind", "group_index")),
    "job_id": "grp-0123456789abcdef",
    "backend": "local",
    "debug": False,
    "protocol": 1,
}
"""The reference of a batch that nobody has stored."""


@pytest.fixture
def signatures() -> Signatures:
    return Signatures(Kept())


def values(signatures: Signatures, inputs: int = 10_000, failed: tuple[int, ...] = ()) -> BatchValues:
    return BatchValues.of(JobReference.from_dict(REFERENCE), inputs, failed, Access("lab"), signatures)


def arrived(sent: BatchValues, signatures: Signatures) -> BatchValues:
    """The sequence as a downstream task gets it."""
    read = BatchValues.deserialize(json.loads(json.dumps(sent.serialize())), BatchValues.__version__)
    return BatchValues(read.serialize(), signatures, default_connections())


@pytest.mark.promise("scale: 10,000 plain values never pass XCom")
def test_xcom_holds_no_value_and_the_length_is_known(signatures: Signatures) -> None:
    sent = values(signatures, failed=(3, 7, 8))
    got = arrived(sent, signatures)
    assert len(json.dumps(sent.serialize())) < 1500
    assert len(got) == 9_997
    assert got.failed == [3, 7, 8]
    assert got.indexes[:6] == [0, 1, 2, 4, 5, 6]
    assert repr(got) == "<values of 10000 inputs>"


@pytest.mark.attack
@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": 20_000},
        {"missing": ""},
        {"conn_id": "other"},
        {"gcp_conn_id": "other"},
        {"impersonation_chain": ["robot@lab.iam.gserviceaccount.com"]},
        {"reference": {**REFERENCE, "job_id": "grp-fedcba9876543210"}},
        {"reference": "grp-0123456789abcdef"},
        {"signature": "0" * 64},
        {"signature": None},
        {"signed_with": "f" * 16},
    ],
)
def test_what_nobody_signed_is_not_read(signatures: Signatures, changes: dict[str, Any]) -> None:
    forged = BatchValues({**values(signatures, failed=(3,)).serialize(), **changes}, signatures)
    with pytest.raises(InvalidRequest, match="values of a batch, from XCom, are not"):
        len(forged)
    with pytest.raises(InvalidRequest, match="values of a batch, from XCom, are not"):
        with_references([forged], "op_args", signatures.verified)


def test_the_credentials_of_the_task_are_signed_too(signatures: Signatures) -> None:
    access = Access("lab", "google", ("robot@lab.iam.gserviceaccount.com",))
    sent = BatchValues.of(JobReference.from_dict(REFERENCE), 3, [], access, signatures)
    assert len(arrived(sent, signatures)) == 3
    for name in ("gcp_conn_id", "impersonation_chain"):
        less = {field: value for field, value in sent.serialize().items() if field != name}
        with pytest.raises(InvalidRequest, match="values of a batch, from XCom, are not believed"):
            len(BatchValues(less, signatures))


@pytest.mark.attack
def test_a_signature_of_a_single_value_is_none_of_a_batch(signatures: Signatures) -> None:
    content = {
        name: values(signatures).serialize()[name] for name in ("reference", "inputs", "missing", "conn_id")
    }
    with pytest.raises(InvalidRequest, match="its signature is not that of a task"):
        len(BatchValues(signatures.sealed("kinetic result reference", content), signatures))


def boxed(number: int, folder: str) -> Any:
    return complex(number, len(folder) * 0) if number else "plain"


@pytest.mark.promise("scale: The value is a lazy sequence: index, iterate, `.expand`")
@pytest.mark.usefixtures("local_jobs")
def test_values_are_read_where_they_are_used(
    tmp_path: Path, request: pytest.FixtureRequest, signatures: Signatures
) -> None:
    identity = TaskIdentity("dag", request.node.nodeid, "began", "task", -1, 1)
    started = start(identity, [2, 1, 6], tmp_path, function=square)
    ended(started)
    sent = BatchValues.of(started.reference, 3, [1], ENVIRONMENT, signatures)
    got = arrived(sent, signatures)
    assert [got[0], got[-1], got[:], list(got), list(got.items())] == [
        4,
        36,
        [4, 36],
        [4, 36],
        [(0, 4), (2, 36)],
    ]
    with pytest.raises(IndexError):
        got[2]
    (references,) = with_references([got], "op_args", signatures.verified)
    assert [each.load() for each in references] == [4, 36]


@pytest.mark.attack
@pytest.mark.usefixtures("local_jobs")
def test_what_xcom_cannot_carry_is_a_reference(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Signed with the secret of the sequence: who reads knows of no team, and makes no other secret."""
    of_all: dict[str, tuple[str, str]] = {}
    identity = TaskIdentity("dag", request.node.nodeid, "began", "task", -1, 1)
    started = start(identity, [0, 1], tmp_path, function=boxed)
    ended(started)
    sent = BatchValues.of(started.reference, 2, [], ENVIRONMENT, Signatures(OfTeam("red", of_all), "red"))
    signatures = Signatures(OfTeam("red", of_all))
    got = arrived(sent, signatures)
    assert got[0] == "plain"
    assert signatures.verified(got[1], "op_args").type_name == "complex"
    assert len(of_all) == 2, "the secret, and its name"

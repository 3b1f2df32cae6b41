"""Who may say that a dict in an XCom is a reference to a value."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace
from typing import Any

import pytest

from airflow_provider.xcom import SECRET, Signatures, with_references
from kinetic_core import ResultReference
from kinetic_core.errors import InvalidRequest

pytestmark = pytest.mark.attack
JOB = "job-0123456789abcdef"
REFERENCE = ResultReference("file:///store", f"jobs/{JOB}/result", "0" * 64, JOB, "Box")


class Kept:
    """Variables of an Airflow, which count who reads what."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.read: Counter[str] = Counter()

    def get(self, name: str) -> str | None:
        self.read[name] += 1
        return self.values.get(name)

    def set(self, name: str, value: str) -> None:
        self.values[name] = value


class Late(Kept):
    """Those that another worker has not filled yet when it is first asked."""

    def get(self, name: str) -> str | None:
        return None if name == SECRET else super().get(name)


def test_what_a_worker_signed_another_believes() -> None:
    variables = Kept()
    signed = Signatures(variables).signed(REFERENCE)
    assert Signatures(variables).verified(signed, "op_args") == REFERENCE
    assert ResultReference.from_dict(signed) == REFERENCE


@pytest.mark.parametrize(
    "changes",
    [
        *({field.name: "other"} for field in fields(ResultReference)),
        {"object_name": "jobs/job-ffffffffffffffff/result", "job_id": "job-ffffffffffffffff"},
        {"sha256": 0},
        {"signature": None},
        {"signature": "0" * 64},
        {"signature": "\u00e9"},
        {"signed_with": None},
        {"signed_with": "f" * 16},
        {"signed_with": "../kinetic_deployment"},
        {"signed_with": ["a"]},
    ],
    ids=str,
)
def test_what_was_changed_is_refused(changes: dict[str, Any]) -> None:
    variables = Kept()
    signed = Signatures(variables).signed(REFERENCE)
    with pytest.raises(InvalidRequest, match=r"op_args\[0\] looks like a reference.*nothing is loaded"):
        Signatures(variables).verified({**signed, **changes}, "op_args[0]")
    assert {name for name in variables.read if not name.startswith(SECRET)} == set()


def test_without_a_signature_or_a_field_it_is_refused() -> None:
    signatures = Signatures(Kept())
    with pytest.raises(InvalidRequest, match="it has no signature"):
        signatures.verified(REFERENCE.to_dict(), "op_args")
    with pytest.raises(InvalidRequest, match="it is not complete"):
        signatures.verified({"__kinetic_result__": 1}, "op_args")


def test_another_airflows_signature_is_refused() -> None:
    signed = Signatures(Kept()).signed(REFERENCE)
    with pytest.raises(InvalidRequest, match="a secret that this Airflow does not have"):
        Signatures(Kept()).verified(signed, "op_args")


def test_a_signed_name_must_be_that_of_a_result() -> None:
    variables = Kept()
    for other in (replace(REFERENCE, object_name="batches/x/payload"), replace(REFERENCE, sha256="..")):
        signed = Signatures(variables).signed(other)
        with pytest.raises(InvalidRequest, match="it names no result of a job"):
            Signatures(variables).verified(signed, "op_args")


def test_two_makers_of_the_first_secret_are_both_believed() -> None:
    variables, late = Kept(), Late()
    late.values = variables.values
    first = Signatures(variables).signed(REFERENCE)
    second = Signatures(late).signed(REFERENCE)
    third = Signatures(variables).signed(REFERENCE)
    assert first["signed_with"] != second["signed_with"] == third["signed_with"]
    for signed in (first, second, third):
        assert Signatures(variables).verified(signed, "op_args") == REFERENCE


class OfTeam(Kept):
    """Variables as a team has them: to set another team's changes its value, and not whose it is."""

    def __init__(self, team: str, of_all: dict[str, tuple[str, str]]) -> None:
        super().__init__()
        self._team, self._of_all = team, of_all

    def get(self, name: str) -> str | None:
        team, value = self._of_all.get(name, ("", ""))
        return value if team == self._team else None

    def set(self, name: str, value: str) -> None:
        team, _ = self._of_all.get(name, (self._team, ""))
        self._of_all[name] = team, value


def test_each_team_makes_one_secret() -> None:
    of_all: dict[str, tuple[str, str]] = {}
    signed = [
        Signatures(OfTeam(team, of_all), team).signed(REFERENCE) for team in ("red", "blue", "red", "blue")
    ]
    assert [each["signed_with"] for each in signed[:2]] == [each["signed_with"] for each in signed[2:]]
    assert len(of_all) == 4, "for each team its secret, and the name of the one in use"
    with pytest.raises(InvalidRequest, match="a secret that this Airflow does not have"):
        Signatures(OfTeam("blue", of_all), "blue").verified(signed[0], "op_args")


def test_the_public_name_of_a_teams_secret_signs_nothing() -> None:
    """Every reference of a team holds that name, and the Variable that keeps it is called like a secret."""
    variables, theirs = Kept(), Kept()
    genuine = Signatures(variables, "red").signed(REFERENCE)
    theirs.set(f"{SECRET}_red", str(genuine["signed_with"]))
    assert variables.values.items() >= theirs.values.items()
    forged = Signatures(theirs).signed(REFERENCE, like={"signed_with": "red"})
    with pytest.raises(InvalidRequest, match="a secret that this Airflow does not have"):
        Signatures(variables, "red").verified(forged, "op_args")


def test_a_thousand_references_read_one_secret() -> None:
    variables = Kept()
    signed = Signatures(variables).signed(REFERENCE)
    reader = Kept()
    reader.values = variables.values
    found = with_references([dict(signed)] * 1000, "op_args", Signatures(reader).verified)
    assert found == [REFERENCE] * 1000
    assert sum(reader.read.values()) == 1


def test_a_triggerer_signs_with_the_secret_there_is() -> None:
    variables = Kept()
    assert Signatures(variables).signed_if_possible(REFERENCE) is None
    assert variables.values == {}
    Signatures(variables).signed(REFERENCE)
    signed = Signatures(variables).signed_if_possible(REFERENCE)
    assert signed is not None
    assert Signatures(variables).verified(signed, "op_args") == REFERENCE


def test_a_long_process_notices_a_secret_that_was_replaced() -> None:
    now = [0.0]
    variables = Kept()
    signer = Signatures(variables, clock=lambda: now[0])
    first = signer.signed(REFERENCE)["signed_with"]
    del variables.values[SECRET]
    replaced = Signatures(variables).signed(REFERENCE)["signed_with"]
    assert signer.signed(REFERENCE)["signed_with"] == first
    now[0] = 61.0
    assert signer.signed(REFERENCE)["signed_with"] == replaced != first
    assert variables.read[SECRET] == 3

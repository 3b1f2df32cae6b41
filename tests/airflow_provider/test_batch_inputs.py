"""What a batch may run over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider.batch_inputs import elements, mapped_parameter
from airflow_provider.xcom import Signatures
from kinetic_core.connections import default_connections
from kinetic_core.errors import InvalidRequest
from tests.airflow_provider.test_signatures import REFERENCE, Kept

CONTEXT = {"run_id": "monday", "params": {"size": 2}}


def of_the_run(run_id: str, params: dict[str, int], other: int = 7) -> Iterator[Any]:
    yield from (run_id, params["size"], other)


def everything(**context: Any) -> list[str]:
    return sorted(context)


def read(value: object) -> list[Any]:
    return elements(value, "text", CONTEXT, default_connections(), Signatures(Kept()).verified)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([1, [2], {"a": 3}], [1, [2], {"a": 3}]),
        ((1, 2), [1, 2]),
        (range(3), [0, 1, 2]),
        (iter("ab"), ["a", "b"]),
        (of_the_run, ["monday", 2, 7]),
        (everything, ["params", "run_id"]),
        ([], []),
    ],
)
def test_a_batch_runs_over(given: object, found: list[Any]) -> None:
    assert read(given) == found


def test_or_over_the_lines_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "some inputs.jsonl"
    file.write_text('{"a": 1}\n\n"b"\n3\n', encoding="utf-8")
    assert read(file.as_uri()) == [{"a": 1}, "b", 3]
    file.write_text('1\n{"a": \n', encoding="utf-8")
    with pytest.raises(InvalidRequest, match=r"text: line 2 of file://.* is no JSON"):
        read(file.as_uri())


@pytest.mark.attack
@pytest.mark.parametrize("name", ["airflow.cfg", "simple_auth_manager_passwords.json.generated"])
def test_lines_of_airflows_own_files_never_ship(tmp_path: Path, name: str) -> None:
    """Whoever may start a run may say the address, if the DAG takes it from the run's configuration."""
    (tmp_path / name).write_text('{"admin": "secret"}')
    (tmp_path / "link.jsonl").symlink_to(tmp_path / name)
    for file in (name, "link.jsonl"):
        with pytest.raises(InvalidRequest, match="is Airflow's own"):
            read((tmp_path / file).as_uri())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("abc", "is a text: pass a list, or gs://bucket/path.jsonl"),
        ("gs://bucket", "is a text"),
        (b"abc", "text is a bytes"),
        ({"a": 1}, "text is a dict, and the task runs over its elements"),
        (7, "text is an int"),
        (lambda nothing: [], "parameter 'nothing' is nothing of Airflow's context"),
        ([REFERENCE.to_dict()], "it has no signature"),
        (REFERENCE.to_dict(), "it has no signature"),
        ("file:///there/is/none.jsonl", "cannot be read by this worker"),
    ],
)
def test_or_over_nothing_else(given: object, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        read(given)


def test_the_first_parameter_is_mapped_unless_over_names_one() -> None:
    def call(text: str, *more: str, model: str = "small", **others: str) -> None: ...

    assert mapped_parameter(call, None) == "text"
    assert mapped_parameter(call, "model") == "model"
    with pytest.raises(
        InvalidRequest, match="over='words' is no parameter of the function, which has text, model"
    ):
        mapped_parameter(call, "words")
    with pytest.raises(InvalidRequest, match="needs a function with a parameter"):
        mapped_parameter(lambda: 0, None)

"""What a batch may run over."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from airflow_provider.batch_inputs import elements, mapped_parameter
from airflow_provider.xcom import Signatures
from kinetic_core.connections import default_connections
from kinetic_core.errors import InvalidRequest, KineticError
from kinetic_core.jobs.collect import collect, result_reference
from kinetic_core.jobs.observe import wait
from kinetic_core.jobs.references import ResultReference
from kinetic_core.store.gcs import GcsObjectStore
from tests.airflow_provider.test_signatures import REFERENCE, Kept

CONTEXT = {"run_id": "monday", "params": {"size": 2}}


def of_the_run(run_id: str, params: dict[str, int], other: int = 7) -> Iterator[Any]:
    yield from (run_id, params["size"], other)


def everything(**context: Any) -> list[str]:
    return sorted(context)


def read(value: object) -> list[Any]:
    return elements(value, "text", CONTEXT, default_connections(), Signatures(Kept()).verified)


@pytest.mark.promise("scale: Over a list, an XComArg, a reference, a generator, a `gs://` file")
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


@pytest.mark.promise("scale: Over a list, an XComArg, a reference, a generator, a `gs://` file")
@pytest.mark.cluster
def test_or_over_the_lines_of_an_object(emulator: str) -> None:
    folder = f"test-bucket/inputs-{secrets.token_hex(4)}"
    bucket = GcsObjectStore.at(folder)
    bucket.create_if_absent("of today/some.jsonl", b'{"a": 1}\n\n"\xc3\xa9"\n3\n')
    bucket.create_if_absent("cut.jsonl", b'1\n{"a": \n')
    try:
        assert read(f"gs://{folder}/of today/some.jsonl") == [{"a": 1}, "é", 3]
        with pytest.raises(InvalidRequest, match=r"text: line 2 of gs://.*/cut.jsonl is no JSON"):
            read(f"gs://{folder}/cut.jsonl")
        with pytest.raises(KineticError, match=r"none\.jsonl"):
            read(f"gs://{folder}/none.jsonl")
    finally:
        for name in ("of today/some.jsonl", "cut.jsonl"):
            bucket.delete(name)


class Box:
    """Something XCom cannot carry."""


@kinetic_core.run(accelerator="cpu")
def made(kind: str) -> Any:
    return [1, {"a": 2}, "three"] if kind == "plain" else [Box()]


def referred(kind: str) -> ResultReference:
    """A reference to the value of a job that has ended."""
    handle = made.run_async(kind)
    wait(handle.place, handle)
    return result_reference(handle, collect(handle.place, handle, allow_pickle=False))


@pytest.mark.promise("scale: Over a list, an XComArg, a reference, a generator, a `gs://` file")
@pytest.mark.usefixtures("local_jobs")
def test_or_over_the_list_that_a_task_returned() -> None:
    """Its signed reference is opened; one to a value that needs unpickling is not, but jobs may get it."""
    signatures, connections = Signatures(Kept()), default_connections()
    plain, boxed = referred("plain"), referred("boxed")

    def given(value: object) -> list[Any]:
        return elements(value, "text", CONTEXT, connections, signatures.verified)

    assert given(signatures.signed(plain)) == [1, {"a": 2}, "three"]
    assert given([signatures.signed(plain), 7, signatures.signed(boxed)]) == [plain, 7, boxed]
    with pytest.raises(InvalidRequest, match="whose elements only a job can see"):
        given(signatures.signed(boxed))
    with pytest.raises(InvalidRequest, match="its signature is not that of a task of this Airflow"):
        given({**signatures.signed(plain), "signature": "0" * 64})


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

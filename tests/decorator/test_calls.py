"""Calling a decorated function: every kind of function, every kind of end, on the real local backend."""

from __future__ import annotations

import functools
import importlib
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinetic_core
from kinetic_core import ResultReference
from kinetic_core._runner import object_names, wire
from kinetic_core.connections import default_connections
from kinetic_core.errors import InvalidRequest, UnpicklableArgument, UnverifiedResult
from kinetic_core.jobs.submit import Call, prepare
from kinetic_core.options import RunOptions
from tests.conftest import wait_for

pytestmark = pytest.mark.usefixtures("local_jobs")
on_cpu = kinetic_core.run(accelerator="cpu")
SCALE = 3


class OwnError(Exception):
    """Of the project: the caller's `except` must know it."""


@on_cpu
def scaled(x: int, *, plus: int = 0) -> int:
    print(f"scaling {x}")
    return x * SCALE + plus


def test_returns_the_value_and_prints_what_the_job_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert scaled(5, plus=1) == 16
    out = capsys.readouterr()
    assert out.out == "scaling 5\n"
    assert "scaling" not in out.err


def test_the_first_line_says_a_missing_accelerator(
    capsys: pytest.CaptureFixture[str],
) -> None:
    kinetic_core.run(accelerator="tpu-v6e-8")(lambda: print("second"))()
    first, second = capsys.readouterr().out.splitlines()
    assert first == "kinetic: asked for tpu-v6e-8; backend 'local' runs it on this machine"
    assert second == "second"


def test_what_ends_in_no_newline_is_seen_at_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    @on_cpu
    def bar() -> None:
        for step in range(3):
            print(f"\r{step}/3", end="", flush=True)
        while not (tmp_path / "go").exists():
            time.sleep(0.01)

    handle = bar.run_async()
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(str(handle.logs(follow=True))))
    thread.start()
    text = ""

    def shown() -> bool:
        nonlocal text
        text += capfd.readouterr().out
        return text == "\r0/3\r1/3\r2/3"

    wait_for(shown)
    (tmp_path / "go").touch()
    thread.join()
    assert text + capfd.readouterr().out == "\r0/3\r1/3\r2/3\n"
    handle.result()


class Model:
    def __init__(self, weight: int) -> None:
        self.weight = weight

    @on_cpu
    def predict(self, x: int) -> int:
        return self.weight * x

    @staticmethod
    @on_cpu
    def double(x: int) -> int:
        return 2 * x

    @on_cpu
    @staticmethod
    def triple(x: int) -> int:
        return 3 * x

    @on_cpu
    @classmethod
    def named(cls, x: int) -> str:
        return f"{cls.__name__} {x}"

    def __call__(self, x: int) -> int:
        return self.weight + x


async def _later(x: int) -> int:
    return x + 1


def _closure(n: int) -> Any:
    def inner(x: int) -> int:
        return x + n

    return inner


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (on_cpu(lambda x: x - 1), 4),
        (on_cpu(_closure(10)), 15),
        (on_cpu(functools.partial(pow, 2)), 32),
        (on_cpu(Model(7)), 12),
        (on_cpu(_later), 6),
        (Model(4).predict, 20),
        (Model.double, 10),
        (Model.triple, 15),
        (Model(1).triple, 15),
        (Model.named, "Model 5"),
    ],
    ids=[
        "lambda",
        "closure",
        "partial",
        "instance",
        "coroutine",
        "method",
        "static",
        "static2",
        "static3",
        "class",
    ],
)
def test_every_kind_of_function(function: Any, expected: object) -> None:
    assert function.run_async(5).result() == expected


def test_a_function_without_a_file() -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("def cell(x):\n    return [x] * n\nn = 2", namespace)
    assert on_cpu(namespace["cell"])("a") == ["a", "a"]


@on_cpu
def fail(kind: str) -> None:
    print("failing", flush=True)
    if kind == "own":
        raise OwnError(kind)
    raise ValueError(kind)


@pytest.mark.parametrize(("kind", "error"), [("own", OwnError), ("builtin", ValueError)])
def test_what_it_raises_is_raised_here(kind: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=kind) as caught:
        fail.run_async(kind).result()
    assert type(caught.value) is error
    assert "in fail" in "".join(caught.value.__notes__)


def test_a_failed_job_is_kept() -> None:
    handle = fail.run_async("x")
    with pytest.raises(ValueError, match="x"):
        handle.result()
    assert handle.status() is kinetic_core.JobStatus.FAILED
    assert handle.logs().endswith("failing\n")
    handle.cleanup()
    assert handle.status() is kinetic_core.JobStatus.NOT_FOUND


def test_a_result_can_be_asked_for_again_after_cleanup() -> None:
    handle = on_cpu(lambda: OwnError("kept")).run_async()
    assert str(handle.result()) == str(handle.result()) == "kept"
    again = kinetic_core.attach(handle.job_id)
    assert again.status() is kinetic_core.JobStatus.SUCCEEDED
    assert str(again.result()) == "kept"


def test_values_keep_their_types() -> None:
    value = {"w": np.eye(2), (1, 2): {b"x"}}
    back = on_cpu(lambda v: v)(value)
    np.testing.assert_array_equal(back["w"], value["w"])
    assert back[(1, 2)] == {b"x"}
    instance = on_cpu(lambda: Model(3))()
    assert type(instance) is Model


def test_the_jobs_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLOUR_OF_SKY", "blue")
    monkeypatch.setenv("OTHER", "no")

    @kinetic_core.run(accelerator="cpu", capture_env_vars=["COLOUR_*"], output_dir=str(tmp_path / "out"))
    def look() -> dict[str, Any]:
        helper = importlib.import_module("helper")  # of the shipped project, which is this directory
        Path(os.environ["KINETIC_OUTPUT_DIR"], "model.txt").write_text("weights")
        return {"env": [os.environ.get("COLOUR_OF_SKY"), os.environ.get("OTHER")], "helper": helper.__file__}

    seen = look()
    assert seen["env"] == ["blue", None]
    assert "workspace" in seen["helper"]
    assert (tmp_path / "out" / "model.txt").read_text() == "weights"


@pytest.mark.promise("data: `capture_env_vars` as specified, outside the pickle")
def test_captured_values_are_beside_the_pickles_and_not_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLOUR_OF_SKY", "blue as can be")
    options = RunOptions.checked("cpu", capture_env_vars=["COLOUR_*"])
    header, parts = wire.decode_frame(prepare(Call(lambda: 1), options, default_connections()).payload)
    assert header["env"]["COLOUR_OF_SKY"] == "blue as can be"
    assert parts
    assert not any(b"blue as can be" in part for part in parts.values())


def test_a_result_reference_is_resolved_in_the_next_job() -> None:
    from kinetic_core.jobs import collect

    first = on_cpu(lambda: np.arange(3)).run_async()
    first.result(cleanup=False)
    reference = collect.result_reference(first, collect.collect(first.place, first))
    assert on_cpu(lambda box: int(box["x"].sum()))({"x": reference}) == 3
    assert reference.load().tolist() == [0, 1, 2]


@pytest.mark.attack
def test_a_reference_names_what_was_verified_and_nothing_else() -> None:
    from kinetic_core.jobs import collect

    first = on_cpu(lambda: np.arange(3)).run_async()
    first.result(cleanup=False)
    outcome = collect.collect(first.place, first)
    stored = Path(first.store_uri.removeprefix("file://"), object_names.result(first.job_id))
    honest = stored.read_bytes()
    planted = wire.encode_frame({"job_id": first.job_id, "codec": "pickle"}, {"body": b"planted"})
    stored.chmod(0o600)
    stored.write_bytes(planted)  # between the check of the signature and the making of the reference
    assert collect.result_reference(first, outcome).sha256 == wire.head_digest(honest)
    with pytest.raises(UnverifiedResult, match="the key that signed the outcome"):
        collect.result_reference(first, replace(outcome, verified=False))


@pytest.mark.attack
@pytest.mark.parametrize("store", ["gs://elsewhere", "file:///tmp/elsewhere"])
def test_a_reference_into_another_store_is_refused(store: str) -> None:
    job_id = "job-0123456789abcdef"
    reference = ResultReference(store, f"jobs/{job_id}/result", "0" * 64, job_id, "Box")
    for argument in (reference, {"deep": [reference]}):
        with pytest.raises(InvalidRequest, match=f"a value of {job_id} lies in {store}, and this job reads"):
            on_cpu(lambda box: box).run_async(argument)
    with pytest.raises(InvalidRequest, match="this job reads"):
        on_cpu(lambda: reference).run_async()


@pytest.mark.promise("gke: `dry_run` returns it")
def test_a_dry_run_shows_the_job_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "kinetic"))
    function = kinetic_core.run(accelerator="tpu-v6e-8", labels={"team": "a"}, memory="1Gi")(
        scaled.__wrapped__
    )
    manifest = function.dry_run(5, plus=1)
    pod = manifest["spec"]["template"]["spec"]
    assert manifest["metadata"]["labels"]["team"] == "a"
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "2x4"
    values = {variable["name"]: variable.get("value") for variable in pod["containers"][0]["env"]}
    assert values["KINETIC_STORE"] == (tmp_path / "kinetic" / "store").as_uri()
    assert values["KINETIC_OUTCOME_KEY"] == ""
    assert not (tmp_path / "kinetic").exists()
    with pytest.raises(UnpicklableArgument):
        function.dry_run(threading.Lock())

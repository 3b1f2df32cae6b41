"""Calling a decorated function: every kind of function, every kind of end, on the real local backend."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kinetic_core
from kinetic_core.errors import InvalidFunction, InvalidRequest, JobFailed, UnpicklableArgument, WaitTimeout
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
    assert out.err == ""  # no progress when piped


def test_an_accelerator_that_is_not_here_is_said_in_the_first_line(
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


def _generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (3, "decorates a function, not 3"),
        (_generator, "is a generator"),
        (Model, "cannot decorate the class Model"),
        (functools.lru_cache(_closure), "is a cache wrapper"),
    ],
    ids=["number", "generator", "class", "cache"],
)
def test_what_cannot_be_a_job_is_refused_at_decoration(function: Any, says: str) -> None:
    with pytest.raises(InvalidFunction, match=says):
        on_cpu(function)


def test_a_bare_decorator_is_told_how_to_be_written() -> None:
    with pytest.raises(InvalidFunction, match=r'write @run\(accelerator="tpu-v5e-1"\)'):
        kinetic_core.run(lambda: 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"accelerator": "tpu-v9-8"},
        {"backend": "cloud"},
        {"memory": "much"},
        {"timeout": 0},
        {"retries": -1},
        {"volumes": {"data": 1}},
        {"capture_env_vars": ["A=b"]},
        {"capture_env_vars": ["*_TOKEN"]},
        {"namespace": "Foo Bar"},
        {"labels": {"app": "mine"}},
        {"labels": {"a b": "c"}},
        {"node_selector": {"a": "b c"}},
        {"secrets": {"TOKEN": "no-key"}},
        {"cpu": 0},
        {"disk": "large"},
        {"queue": "Not A Name"},
        {"tolerations": [{"taint": "x"}]},
        {"infrastructure_retries": -1},
        {"lease": 5},
        {"hang_after": 1},
        {"budget": 0},
        {"budget": -1},
        {"budget": float("nan")},
        {"lease": 60, "accelerator": "tpu-v5e-16"},
        {"flex_start": True},
        {"flex_start": True, "accelerator": ["tpu-v6e-8", "tpu-v5e-8:spot"]},
        {"flex_start": True, "accelerator": "gpu-l4", "reservation": "ours"},
        {"security_context": {"user": "root"}},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_are_checked_where_they_are_written(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(options)).removesuffix("s")):
        kinetic_core.run(**{"accelerator": "cpu", **options})


def test_wrong_arguments_are_refused_like_a_call_would() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        scaled()  # type: ignore[call-arg]


def test_an_unpicklable_argument_is_named_before_anything_is_stored(local_jobs: Path) -> None:
    def stored() -> set[Path]:
        return {path for path in local_jobs.rglob("*") if path.is_file()}

    before = stored()
    with pytest.raises(UnpicklableArgument, match=r"argument 'plus' \(lock\) cannot be sent.*Make it inside"):
        scaled(1, plus=threading.Lock())  # type: ignore[arg-type]
    lock = threading.Lock()
    with pytest.raises(UnpicklableArgument, match="the function lambda"):
        on_cpu(lambda: lock)()
    assert stored() == before


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
    assert handle.logs() == "failing\n"
    handle.cleanup()
    assert handle.status() is kinetic_core.JobStatus.NOT_FOUND


def test_a_result_can_be_asked_for_again_after_cleanup() -> None:
    handle = on_cpu(lambda: OwnError("kept")).run_async()
    assert str(handle.result()) == str(handle.result()) == "kept"
    again = kinetic_core.attach(handle.job_id)
    with pytest.raises(kinetic_core.KineticError, match="trust_store=True"):
        again.result()
    assert str(again.result(trust_store=True)) == "kept"


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
        helper = importlib.import_module("executor.helper")  # of the shipped project, whose root is tests/
        Path(os.environ["KINETIC_OUTPUT_DIR"], "model.txt").write_text("weights")
        return {"env": [os.environ.get("COLOUR_OF_SKY"), os.environ.get("OTHER")], "helper": helper.__file__}

    seen = look()
    assert seen["env"] == ["blue", None]
    assert "workspace" in seen["helper"]
    assert (tmp_path / "out" / "model.txt").read_text() == "weights"


def test_data_becomes_a_path(tmp_path: Path) -> None:
    (tmp_path / "set" / "empty").mkdir(parents=True)
    (tmp_path / "set" / "a.txt").write_text("A")
    (tmp_path / "one.bin").write_bytes(b"1")

    @on_cpu
    def read(folder: str, deep: dict[str, list[str]]) -> Any:
        return (
            sorted(path.name for path in Path(folder).iterdir()),
            Path(deep["x"][0]).read_bytes(),
            Path(deep["x"][0]).name,
            folder,
        )

    data = kinetic_core.Data(str(tmp_path / "one.bin"))
    names, content, name, folder = read(kinetic_core.Data(str(tmp_path / "set")), {"x": [data]})
    assert (names, content, name) == (["a.txt", "empty"], b"1", "one.bin")
    assert not folder.startswith(str(tmp_path / "set"))


def test_a_volume_stays_what_it_is_while_a_job_uses_it(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").touch()
    mount = str(tmp_path / "mounted")

    def listing(begun: str, go: str) -> list[str]:
        Path(begun).touch()
        while not Path(go).exists():
            time.sleep(0.01)
        return [entry.name for entry in Path(mount).iterdir()]

    def job(data: str) -> kinetic_core.JobHandle:
        volumes = {mount: kinetic_core.Data(str(tmp_path / data))}
        function = kinetic_core.run(accelerator="cpu", volumes=volumes)(listing)
        return function.run_async(str(tmp_path / f"{data}-begun"), str(tmp_path / "go"))

    first = job("first")
    wait_for((tmp_path / "first-begun").exists)
    second = job("second")
    try:
        wait_for(lambda: "other data is at" in (second.logs() or ""))
        assert not (tmp_path / "second-begun").exists()
    finally:
        (tmp_path / "go").touch()  # else the jobs keep every slot of this machine
    assert first.result() == ["first.txt"]
    assert second.result() == ["second.txt"]


def test_outputs_go_where_the_caller_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def work() -> None:
        Path(os.environ["KINETIC_OUTPUT_DIR"], "model").write_text("weights")

    kinetic_core.run(accelerator="cpu", output_dir="./outs")(work)()
    assert (tmp_path / "outs" / "model").read_text() == "weights"
    with pytest.raises(InvalidRequest, match=r"output_dir='gs://b/x' is no directory of this machine"):
        kinetic_core.run(accelerator="cpu", output_dir="gs://b/x")(work)()


def test_the_store_is_no_part_of_a_project_that_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(tmp_path))
    monkeypatch.setenv("KINETIC_LOCAL_STORE", str(tmp_path / "kinetic"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.txt").touch()
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("def names():\n    import os\n    return sorted(os.listdir())", namespace)
    names = on_cpu(namespace["names"])
    assert names() == ["here.txt"]
    handle = names.run_async()
    assert handle.result(cleanup=False) == ["here.txt"]
    (record,) = (tmp_path / "kinetic" / "cluster").rglob("job-*.json")
    for private in (tmp_path / "kinetic", record):  # the record holds the key of the outcome
        assert private.stat().st_mode & 0o077 == 0


def test_volumes_are_mounted(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("V")
    mount = tmp_path / "mount" / "here"

    @kinetic_core.run(accelerator="cpu", volumes={str(mount): kinetic_core.Data(str(tmp_path / "v.txt"))})
    def read() -> str:
        return (mount / "v.txt").read_text()

    assert [read(), read()] == ["V", "V"]


def test_a_result_reference_is_resolved_in_the_next_job() -> None:
    from kinetic_core.lifecycle import collecting

    first = on_cpu(lambda: np.arange(3)).run_async()
    first.result(cleanup=False)
    reference = collecting.result_reference(first, collecting.collect(first))
    assert on_cpu(lambda box: int(box["x"].sum()))({"x": reference}) == 3
    assert reference.load().tolist() == [0, 1, 2]


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


def test_two_threads_submit_at_once() -> None:
    values: list[int] = []
    threads = [threading.Thread(target=lambda i=i: values.append(scaled(i))) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(values) == [0, 3, 6]


def test_patience_ends_but_the_job_goes_on(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    @on_cpu
    def wait() -> str:
        while not gate.exists():
            time.sleep(0.01)
        return "done"

    handle = wait.run_async()
    with pytest.raises(WaitTimeout, match="It goes on"):
        handle.result(timeout=0.05)
    gate.touch()
    seen: list[kinetic_core.JobStatus] = []
    assert handle.result(on_status_change=seen.append) == "done"
    assert seen[-1] is kinetic_core.JobStatus.SUCCEEDED


def test_attach_from_another_process() -> None:
    handle = scaled.run_async(2)
    program = f"import kinetic_core; print(kinetic_core.attach({handle.job_id!r}).result(cleanup=False))"
    other = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ, PYTHONPATH=":".join(sys.path)),
    )
    assert other.stdout.strip() == "6"
    assert handle.result() == 6
    assert handle.job_id in [job.job_id for job in kinetic_core.list_jobs()]
    with pytest.raises(LookupError, match="no job job-0000"):
        kinetic_core.attach("job-0000")


def test_a_job_survives_its_submitter(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import kinetic_core, time, sys\n"
        "@kinetic_core.run(accelerator='cpu')\n"
        "def slow():\n    time.sleep(0.3)\n    return 'survived'\n"
        "print(slow.run_async().job_id)\n"
    )
    environ = {k: v for k, v in os.environ.items() if k != "KINETIC_PACKAGE_ROOT"}
    other = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        check=True,
        env={**environ, "PYTHONPATH": ":".join(sys.path)},
    )
    assert kinetic_core.attach(other.stdout.strip()).result() == "survived"


def test_decorated_functions_unpickle_without_this_package() -> None:
    import pickletools

    import cloudpickle

    names = [str(argument) for _, argument, _ in pickletools.genops(cloudpickle.dumps(on_cpu(_closure(1))))]
    assert not any("kinetic_core" in name for name in names)


def test_the_failure_of_a_process_is_a_job_error() -> None:
    with pytest.raises(JobFailed, match="exited with code 3") as caught:
        on_cpu(lambda: os._exit(3))()
    assert caught.value.failure is not None
    assert caught.value.failure.exit_code == 3

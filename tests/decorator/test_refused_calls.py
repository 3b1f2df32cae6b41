"""What cannot be a job is refused where it is written, before anything is stored."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core.errors import InvalidFunction, InvalidRequest, UnpicklableArgument

pytestmark = pytest.mark.usefixtures("local_jobs")

on_cpu = kinetic_core.run(accelerator="cpu")


@on_cpu
def added(x: int, *, plus: int = 0) -> int:
    return x + plus


def _generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (3, "decorates a function, not 3"),
        (_generator, "is a generator"),
        (Path, "cannot decorate the class Path"),
        (functools.lru_cache(len), "is a cache wrapper"),
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
        {"budget": 0},
        {"budget": -1},
        {"budget": float("nan")},
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
        added()  # type: ignore[call-arg]


def test_an_unpicklable_argument_is_named_first(local_jobs: Path) -> None:
    def stored() -> set[Path]:
        return {path for path in local_jobs.rglob("*") if path.is_file()}

    before = stored()
    with pytest.raises(UnpicklableArgument, match=r"argument 'plus' \(lock\) cannot be sent.*Make it inside"):
        added(1, plus=threading.Lock())  # type: ignore[arg-type]
    lock = threading.Lock()
    with pytest.raises(UnpicklableArgument, match="the function lambda"):
        on_cpu(lambda: lock)()
    assert stored() == before

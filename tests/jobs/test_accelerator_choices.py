"""`accelerator=` as a name or a list of names, checked where it is written."""

from __future__ import annotations

from typing import Any

import pytest

import kinetic_core
from kinetic_core.errors import InvalidRequest
from kinetic_core.options import RunOptions


def choices(accelerator: Any, **options: Any) -> list[str]:
    return [str(one) for one in RunOptions.checked(accelerator, **options).choices]


def test_a_list_keeps_its_order() -> None:
    asked = ["tpu-v6e-8", "v5e-8:spot", "gpu-h100"]
    assert choices(asked) == ["tpu-v6e-8", "tpu-v5e-8:spot", "gpu-h100-1"]
    assert choices(tuple(asked)) == choices(asked)
    assert choices(["cpu", "gpu-l4"], spot=True) == ["cpu", "gpu-l4-1:spot"]
    assert RunOptions.checked(asked).capacity_timeout == 600


def test_a_list_of_one_is_a_name() -> None:
    assert RunOptions.checked(["tpu-v6e-8"]) == RunOptions.checked("tpu-v6e-8")
    assert choices(["tpu-v5p-16"]) == ["tpu-v5p-16"]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([], "names nothing"),
        (["tpu-v6e-8", "v6e-8"], "'tpu-v6e-8' twice"),
        (["tpu-v6e-8", "tpu-v9-8"], "tpu-v9-8"),
        (["tpu-v5e-8", "tpu-v5p-16"], "must be one host"),
        ([f"cpu:{cores}" for cores in range(1, 10)], "8 are the most"),
    ],
)
def test_what_cannot_be_chosen_from_is_refused(asked: list[str], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        kinetic_core.run(accelerator=asked)


@pytest.mark.parametrize("asked", [5, None, {"tpu-v6e-8", "cpu"}, ["cpu", 5], ["cpu", ["gpu-l4"]]])
def test_what_is_no_name_is_a_type_error(asked: Any) -> None:
    with pytest.raises(TypeError, match="or a list of such names"):
        kinetic_core.run(accelerator=asked)


@pytest.mark.parametrize(("seconds", "error"), [(0, InvalidRequest), ("10m", TypeError), (True, TypeError)])
def test_patience_is_a_number_of_seconds(seconds: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="capacity_timeout"):
        kinetic_core.run(accelerator=["cpu", "gpu-l4"], capacity_timeout=seconds)


def test_options_go_with_every_choice() -> None:
    with pytest.raises(InvalidRequest, match="names cores too"):
        kinetic_core.run(accelerator=["gpu-l4", "cpu:8"], cpu=2)


def test_here_the_first_is_taken(local_jobs: object, capsys: pytest.CaptureFixture[str]) -> None:
    del local_jobs
    run = kinetic_core.run(accelerator=["tpu-v6e-8", "gpu-h100"])
    assert run(lambda: 3)() == 3
    assert "asked for tpu-v6e-8;" in capsys.readouterr().out
    batch = run(lambda x: x).run_async_map([1, 2])
    assert batch.results() == [1, 2]

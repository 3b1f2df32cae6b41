"""An option is one row of one table."""

from __future__ import annotations

import dataclasses
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest

import kinetic_core
from kinetic_core import option_checks as checks
from kinetic_core.decorator import RemoteCallable, run
from kinetic_core.errors import InvalidRequest
from kinetic_core.job import PodOptions
from kinetic_core.options import MAP_OPTIONS, OPTIONS, Option, RunKeywords, RunOptions, Table

ROOT = Path(__file__).parents[2]
NICE = Option("How nice the job is, from 0 to 19.", checks.whole_number(0, 19), default=0, read=int)
LONGER = Table(
    type("Longer", (), {"__annotations__": {**RunKeywords.__annotations__, "nice": Annotated[int, NICE]}})
)


@dataclass(frozen=True)
class LongerOptions(RunOptions):
    """The options of `run` and one more: its row is above, its value here."""

    table: ClassVar[Table] = LONGER
    nice: int = 0


def test_a_row_is_all_that_a_new_option_needs() -> None:
    options: dict[str, Any] = {"accelerator": "cpu", "nice": 7}
    assert LongerOptions.checked(**options).nice == 7
    assert LongerOptions.checked("cpu").nice == 0
    with pytest.raises(InvalidRequest, match="nice=20 must be between 0 and 19"):
        LongerOptions.checked(**{**options, "nice": 20})
    with pytest.raises(TypeError, match=r"run\(\) got an unexpected keyword argument 'nice'.*options\.md"):
        RunOptions.checked(**options)
    with pytest.raises(TypeError, match=r"'acelerator'; did you mean accelerator=\?"):
        RunOptions.checked(acelerator="cpu")

    @LONGER.describes
    def longer(**options: Any) -> None:
        """Run it nicely."""

    parameter = inspect.signature(longer).parameters["nice"]
    assert (parameter.default, parameter.annotation) == (0, "int")
    assert "Run it nicely.\n\n    accelerator: " in (longer.__doc__ or "")
    assert "    nice: How nice the job is" in (longer.__doc__ or "")


def test_every_row_has_a_field_for_its_value() -> None:
    """But for `spot`, which becomes a part of the accelerators."""
    places = {each.name for each in (*dataclasses.fields(RunOptions), *dataclasses.fields(PodOptions))}
    assert OPTIONS.rows.keys() - places == {"spot"}
    assert places - OPTIONS.rows.keys() == {"pod", "fallbacks"}


def test_what_a_row_says_is_a_sentence() -> None:
    for name, row in (*OPTIONS.rows.items(), *MAP_OPTIONS.rows.items()):
        assert re.fullmatch(r"[A-Z`].*\.", row.help(name)), name
        assert not row.flag or row.variable, name


def test_the_signature_is_the_tables() -> None:
    taken = inspect.signature(run).parameters
    assert list(taken) == list(OPTIONS.rows)
    by_position = [name for name, each in taken.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert by_position == [  # as keras-kinetic has them
        *("accelerator", "container_image", "base_image_repo", "zone", "project", "capture_env_vars"),
        *("cluster", "backend", "namespace", "volumes", "spot", "output_dir", "debug"),
    ]
    assert taken["volumes"].annotation == "Mapping[str, Data] | None"
    assert taken["accelerator"].default == "tpu-v5e-1"
    assert "hang_after: Seconds without a line of output" in (run.__doc__ or "")


def test_a_map_has_a_table_of_its_own() -> None:
    taken = inspect.signature(RemoteCallable.run_async_map).parameters
    assert list(taken) == ["self", "inputs", *MAP_OPTIONS.rows]
    assert taken["max_concurrent"].default == 64
    assert "skip_done: With `group_id`" in (RemoteCallable.run_async_map.__doc__ or "")
    assert MAP_OPTIONS.check("run_async_map", max_concurrent=None)["max_concurrent"] is None
    with pytest.raises(TypeError, match=r"run_async_map\(\) got an unexpected keyword argument 'limit'"):
        MAP_OPTIONS.check("run_async_map", limit=3)


def test_options_may_be_given_by_position() -> None:
    function = kinetic_core.run("gpu-l4", None, None, "europe-west4-a", "lab", ["WANDB_*"])(len)
    assert function.options == RunOptions.checked(
        accelerator="gpu-l4", zone="europe-west4-a", project="lab", capture_env_vars=["WANDB_*"]
    )
    with pytest.raises(TypeError, match=r"run\(\) multiple values for argument 'accelerator'"):
        kinetic_core.run("gpu-l4", accelerator="cpu")
    with pytest.raises(TypeError, match=r"run\(\) too many positional arguments"):
        kinetic_core.run("cpu", *[None] * 20)


def test_no_other_place_lists_the_options() -> None:
    """A place that names most of them would have to be changed with the table."""
    telling = [name for name in OPTIONS.rows if "_" in name]  # other names are words too
    assert len(telling) > 10
    for folder in ("kinetic_core", "airflow_provider", "docs"):
        for file in (ROOT / folder).rglob("*.*"):
            if file.suffix not in (".py", ".md", ".js", ".json") or file.is_symlink():
                continue
            named = [name for name in telling if re.search(rf"\b{name}\b", file.read_text("utf-8"))]
            if len(named) > len(telling) * 2 / 3:
                assert file.relative_to(ROOT).as_posix() in (
                    "kinetic_core/options.py",
                    "kinetic_core/job.py",  # the values, for the code that acts on them
                    "docs/reference/options.md",
                ), f"{file} names {named}"


@pytest.mark.parametrize(
    ("given", "seconds"), [("90s", 90), ("10m", 600), ("2h", 7200), ("1.5m", 90), (30, 30)]
)
def test_how_long_a_pod_stays_warm(given: object, seconds: float) -> None:
    assert RunOptions.checked("cpu", warm=given).warm == seconds  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["", "ten", "10 minutes", "-1s", 0, "25h", float("inf")])
def test_what_is_no_time_to_stay_warm(given: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^warm=.* must be seconds"):
        RunOptions.checked("cpu", warm=given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("beside", "named"),
    [
        ({"accelerator": ["gpu-l4", "gpu-a100"]}, "several accelerators"),
        ({"debug": True}, "debug="),
        ({"queue": "research"}, "queue="),
        ({"lease": 30}, "lease="),
        ({"backend": "pathways"}, "pathways"),
    ],
)
def test_what_needs_a_pod_of_its_own_is_not_warm(beside: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^warm= does not go with .*{named}"):
        RunOptions.checked(**{"accelerator": "cpu", **beside}, warm="10m")
    with pytest.raises(InvalidRequest, match=r"^warm= needs max_concurrent= in a map"):
        kinetic_core.run(accelerator="cpu", warm="10m", backend="local")(len).run_async_map(["a"])


@pytest.mark.parametrize(
    "given", [{"tags": {"of": "caf\udce9"}}, {"tags": {"\udce9": ""}}, {"name": "caf\udce9"}]
)
def test_a_batch_is_named_with_text_that_can_be_stored(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="cannot be encoded as UTF-8"):
        MAP_OPTIONS.check("run_async_map", **given)

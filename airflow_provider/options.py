"""The run options of a task: checked where they are written, as far as they are known there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kinetic_core.errors import InvalidRequest
from kinetic_core.lifecycle.options import RunOptions
from kinetic_core.lifecycle.pod_options import POD_OPTIONS

OPTION_NAMES = (
    "accelerator",
    "backend",
    "spot",
    "memory",
    "timeout",
    "capacity_timeout",
    "budget",
    "job_retries",
    "container_image",
    "base_image_repo",
    "requirements",
    "capture_env_vars",
    "volumes",
    "output_dir",
    "project",
    "zone",
    "cluster",
    "namespace",
    "infrastructure_retries",
    *(name for name in POD_OPTIONS if name != "queue"),
    "job_queue",
)
"""The options of `kinetic_core.run` that a task takes. `retries` and `queue` are Airflow's own: a job's are
`job_retries` and `job_queue`.
"""

_NUMBERS: dict[str, type[int | float]] = {
    "timeout": float,
    "capacity_timeout": float,
    "budget": float,
    "cpu": float,
    "lease": float,
    "hang_after": float,
    "job_retries": int,
    "infrastructure_retries": int,
}
_TRUTH = {"true": True, "false": False}
_YES_OR_NO = ("spot", "flex_start", "run_as_root")
_NOTHING = "None"
"""What Jinja makes of None."""


def run_options(options: Mapping[str, Any]) -> RunOptions:
    """Validated options; None stands for an option that is not given. Raises InvalidRequest or TypeError."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in ("retries", "queue"):
        if f"job_{name}" in given:
            given[name] = given.pop(f"job_{name}")
    return RunOptions.checked(**given)


def rendered_options(options: Mapping[str, Any]) -> RunOptions:
    """As `run_options`, once templates have been filled in: they leave texts where numbers are meant.

    Raises InvalidRequest only.
    """
    try:
        return run_options({name: _typed(name, value) for name, value in options.items()})
    except TypeError as error:
        raise InvalidRequest(str(error)) from error


def check_options(options: Mapping[str, Any]) -> None:
    """Raise InvalidRequest or TypeError for options that can never be valid.

    Templates, and values that other tasks will deliver, are left until they are known.
    """
    run_options({name: value for name, value in options.items() if not _is_open(value)})


def refuse_debugging(options: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for `debug=`, which `kinetic_core.run` takes and a task cannot."""
    if "debug" in options:
        raise InvalidRequest(
            "debug=: nobody sits at an Airflow worker to attach a debugger, so a task does not take it. Call "
            "the function with @kinetic_core.run(..., debug=True) from a terminal; its code is the same"
        )


def is_template(text: str) -> bool:
    """Whether Airflow will fill something in."""
    return "{{" in text or "{%" in text


def _is_open(value: Any) -> bool:
    if isinstance(value, str):
        return is_template(value)
    if isinstance(value, list | tuple):
        return any(map(_is_open, value))
    if isinstance(value, dict):
        return any(map(_is_open, value.values()))
    if isinstance(value, os.PathLike):  # whose resolve() is something else
        return False
    return hasattr(value, "iter_references") or hasattr(value, "resolve")  # an XComArg or a DagParam


def _typed(name: str, value: Any) -> Any:
    """What the text of a template stands for: a number or a truth value, where the option is one."""
    if not isinstance(value, str) or (name not in _NUMBERS and name not in _YES_OR_NO):
        return value
    text = value.strip()
    if text == _NOTHING:
        return None
    try:
        return _NUMBERS[name](text) if name in _NUMBERS else _TRUTH[text.lower()]
    except (ValueError, KeyError):
        kind = "True or False" if name in _YES_OR_NO else "a number"
        raise InvalidRequest(
            f"{name}={value!r}, from a template or from another task, must be {kind}"
        ) from None

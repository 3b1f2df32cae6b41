"""The run options of a task: checked where they are written, as far as they are known there."""

from __future__ import annotations

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


def run_options(options: Mapping[str, Any]) -> RunOptions:
    """Validated options; None stands for an option that is not given. Raises InvalidRequest or TypeError."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in ("retries", "queue"):
        if f"job_{name}" in given:
            given[name] = given.pop(f"job_{name}")
    return RunOptions.checked(**given)


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


def _is_open(value: Any) -> bool:
    if isinstance(value, str):
        return "{{" in value or "{%" in value
    if isinstance(value, list | tuple):
        return any(map(_is_open, value))
    return hasattr(value, "iter_references") or hasattr(value, "resolve")  # an XComArg or a DagParam

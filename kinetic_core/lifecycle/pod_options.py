"""The options of `run` that are about the pod, validated where they are written."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kinetic_core.errors import InvalidRequest
from kinetic_core.model.job import PodOptions

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")  # RFC 1123 subdomain
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
_SECRET = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[-\w.]+")
_OURS = ("app", "kinetic.dev/")
_TOLERATION = frozenset({"key", "operator", "value", "effect", "tolerationSeconds"})

POD_OPTIONS = (
    "cpu",
    "disk",
    "reservation",
    "priority_class",
    "queue",
    "service_account",
    "node_selector",
    "tolerations",
    "labels",
    "secrets",
    "run_as_root",
    "cache_volume",
)
"""The names of these options, as `run` takes them."""


def pod_options(given: Mapping[str, Any]) -> PodOptions:
    """The options that are not None, checked. Raises InvalidRequest or TypeError, naming the option."""
    options = {name: value for name, value in given.items() if value is not None}
    for name in ("reservation", "priority_class", "queue", "service_account", "cache_volume"):
        if name in options and (not isinstance(options[name], str) or not _NAME.fullmatch(options[name])):
            raise InvalidRequest(
                f"{name}={options[name]!r} is no name of a Kubernetes or Google Cloud object"
            )
    if "cpu" in options:
        options["cpu"] = _cores(options["cpu"])
    if "tolerations" in options:
        options["tolerations"] = _tolerations(options["tolerations"])
    for name in ("node_selector", "labels", "secrets"):
        if name in options:
            options[name] = _texts(name, options[name])
    for key in options.get("labels", {}):
        if key.startswith(_OURS):
            raise InvalidRequest(f"labels: {key!r} is one of ours; choose another")
    for name, place in options.get("secrets", {}).items():
        if not _VARIABLE.fullmatch(name) or not _SECRET.fullmatch(place):
            raise InvalidRequest(f"secrets: {name!r}: {place!r} must be a variable and 'secret/key'")
    if not isinstance(options.get("run_as_root", False), bool):
        raise TypeError(f"run_as_root={options['run_as_root']!r} must be True or False")
    return PodOptions(**options)


def _cores(cpu: float) -> float:
    if not isinstance(cpu, int | float) or isinstance(cpu, bool):
        raise TypeError(f"cpu={cpu!r} must be a number of cores")
    if not math.isfinite(cpu) or cpu < 0.1:
        raise InvalidRequest(f"cpu={cpu!r} must be at least 0.1 cores")
    return float(cpu)


def _tolerations(tolerations: Any) -> tuple[dict[str, Any], ...]:
    if isinstance(tolerations, str) or not isinstance(tolerations, Sequence):
        raise TypeError(f"tolerations={tolerations!r} must be a list of Kubernetes tolerations")
    for one in tolerations:
        if not isinstance(one, Mapping) or not set(one) <= _TOLERATION:
            raise InvalidRequest(
                f"tolerations: {one!r} must be a dict with some of {', '.join(sorted(_TOLERATION))}"
            )
    return tuple(dict(one) for one in tolerations)


def _texts(option: str, values: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(values, Mapping):
        raise TypeError(f"{option}={values!r} must be a dict")
    for key, value in values.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"{option}: {key!r}: {value!r} must both be strings")
        label = option != "secrets"
        if label and not (_LABEL_KEY.fullmatch(key) and _LABEL_VALUE.fullmatch(value)):
            raise InvalidRequest(f"{option}: {key!r}: {value!r} is no Kubernetes label")
    return dict(values)

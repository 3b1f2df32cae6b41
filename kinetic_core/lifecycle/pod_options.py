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
_MANAGED = re.compile(r"projects/[-a-z0-9:.]+/secrets/[-\w]+(/versions/([0-9]+|latest|[A-Za-z][-\w]*))?")
_OURS = ("app", "kinetic.dev/")
_TOLERATION = frozenset({"key", "operator", "value", "effect", "tolerationSeconds"})
_SECURITY_FIELDS = frozenset(
    {
        "allowPrivilegeEscalation",
        "appArmorProfile",
        "capabilities",
        "privileged",
        "procMount",
        "readOnlyRootFilesystem",
        "runAsGroup",
        "runAsNonRoot",
        "runAsUser",
        "seLinuxOptions",
        "seccompProfile",
    }
)
"""https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#security-context-1"""
_SHORTEST_LEASE = 15.0
_SHORTEST_HANG = 5.0

POD_OPTIONS = (
    "cpu",
    "disk",
    "reservation",
    "flex_start",
    "priority_class",
    "queue",
    "service_account",
    "node_selector",
    "tolerations",
    "labels",
    "secrets",
    "run_as_root",
    "cache_volume",
    "lease",
    "hang_after",
    "security_context",
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
    if "secrets" in options:
        options["secrets"] = {name: _secret(name, place) for name, place in options["secrets"].items()}
    for name in ("run_as_root", "flex_start"):
        if not isinstance(options.get(name, False), bool):
            raise TypeError(f"{name}={options[name]!r} must be True or False")
    if options.get("flex_start") and "reservation" in options:
        raise InvalidRequest("flex_start=True and reservation= are two ways to get nodes; drop one of them")
    if "lease" in options:
        options["lease"] = _lease(options["lease"])
    if "hang_after" in options:
        options["hang_after"] = _hang_after(options["hang_after"])
    if "security_context" in options:
        options["security_context"] = _security_context(options["security_context"])
    return PodOptions(**options)


def _secret(name: str, place: str) -> str:
    """A reference, with a version if it is one of Secret Manager. What may be a value is not repeated."""
    if _VARIABLE.fullmatch(name):
        if _SECRET.fullmatch(place):
            return place
        if _MANAGED.fullmatch(place):
            return place if "/versions/" in place else f"{place}/versions/latest"
    raise InvalidRequest(
        f"secrets: what is given for {name!r} is no reference: a variable's name leads to 'secret/key' of "
        "the namespace, or to 'projects/PROJECT/secrets/NAME' of Secret Manager; never to the value"
    )


def _cores(cpu: float) -> float:
    if not isinstance(cpu, int | float) or isinstance(cpu, bool):
        raise TypeError(f"cpu={cpu!r} must be a number of cores")
    if not math.isfinite(cpu) or cpu < 0.1:
        raise InvalidRequest(f"cpu={cpu!r} must be at least 0.1 cores")
    return float(cpu)


def _lease(seconds: float) -> float:
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise TypeError(f"lease={seconds!r} must be a number of seconds")
    if not math.isfinite(seconds) or seconds < _SHORTEST_LEASE:
        raise InvalidRequest(
            f"lease={seconds!r} must be at least {_SHORTEST_LEASE:g} seconds: a store that is slow for less "
            "must not end the job"
        )
    return float(seconds)


def _hang_after(seconds: float) -> float:
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise TypeError(f"hang_after={seconds!r} must be a number of seconds")
    if not math.isfinite(seconds) or seconds < _SHORTEST_HANG:
        raise InvalidRequest(
            f"hang_after={seconds!r} must be at least {_SHORTEST_HANG:g} seconds, and longer than anything "
            "that the function silently waits for"
        )
    return float(seconds)


def _security_context(fields: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(fields, Mapping):
        raise TypeError(f"security_context={fields!r} must be a dict")
    if unknown := sorted(set(fields) - _SECURITY_FIELDS):
        raise InvalidRequest(
            f"security_context: {', '.join(map(repr, unknown))}: a container's has "
            f"{', '.join(sorted(_SECURITY_FIELDS))}"
        )
    return dict(fields)


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

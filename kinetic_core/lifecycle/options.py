"""The options of `run`, validated where they are written."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from kinetic_core.configuration import BACKENDS, Settings
from kinetic_core.data.data import Data
from kinetic_core.errors import InvalidRequest
from kinetic_core.lifecycle.accelerator_choices import accelerator_choices
from kinetic_core.lifecycle.pod_options import POD_OPTIONS, pod_options
from kinetic_core.model.accelerators import Accelerator
from kinetic_core.model.job import PodOptions

_CAPACITY_TIMEOUT = 600.0
"""Seconds: a node pool that grows from nothing has its nodes by then."""
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123 label
_MEMORY_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    f"{letter}i": 1 << (10 * power) for power, letter in enumerate("KMGT", start=1)
}
_INFRASTRUCTURE_RETRIES = 10


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the user asked for, checked. Make one with `RunOptions.checked(...)`.

    `memory` is in bytes per host, `timeout` in seconds from submission (waiting included); None means no
    limit. `retries` counts extra attempts after the function failed. A job with `debug` waits for a debugger
    before the function begins. `fallbacks` are taken in their order, each when the accelerators before it had
    no capacity for `capacity_timeout` seconds. `budget` is money, in the currency of the price table.
    """

    accelerator: Accelerator
    container_image: str | None = None
    base_image_repo: str | None = None
    zone: str | None = None
    project: str | None = None
    capture_env_vars: tuple[str, ...] = ()
    cluster: str | None = None
    backend: str | None = None
    namespace: str | None = None
    volumes: Mapping[str, Data] = field(default_factory=dict)
    output_dir: str | None = None
    debug: bool = False
    memory: int | None = None
    timeout: float | None = None
    retries: int = 0
    infrastructure_retries: int = _INFRASTRUCTURE_RETRIES
    pod: PodOptions = field(default_factory=PodOptions)
    requirements: str | Path | Sequence[str] | None = None
    fallbacks: tuple[Accelerator, ...] = ()
    capacity_timeout: float = _CAPACITY_TIMEOUT
    budget: float | None = None

    @property
    def choices(self) -> tuple[Accelerator, ...]:
        """All accelerators, the first choice first."""
        return (self.accelerator, *self.fallbacks)

    def settings(self, settings: Settings) -> Settings:
        """Settings, with where this call runs if it says so."""
        return settings.with_arguments(
            project=self.project, zone=self.zone, cluster=self.cluster, namespace=self.namespace
        )

    @classmethod
    def checked(
        cls,
        accelerator: str | Accelerator | Sequence[str | Accelerator] = "tpu-v5e-1",
        *,
        spot: bool = False,
        capture_env_vars: Sequence[str] | None = None,
        volumes: Mapping[str, Data] | None = None,
        memory: str | int | None = None,
        timeout: float | None = None,
        capacity_timeout: float | None = None,
        budget: float | None = None,
        retries: int = 0,
        infrastructure_retries: int | None = None,
        debug: bool = False,
        requirements: str | Path | Sequence[str] | None = None,
        **others: Any,
    ) -> Self:
        """Options from what the user wrote; `others` are texts, and those of `pod_options`.

        Touches no file and no network. Raises InvalidRequest or one of its kinds, naming the argument, and
        TypeError for one of the wrong type.
        """
        choices = accelerator_choices(accelerator, spot)
        if not isinstance(debug, bool):
            raise TypeError(f"debug={debug!r} must be True or False")
        if debug and len(choices) > 1:
            raise InvalidRequest("debug=True is for one accelerator; name the one to debug on")
        if infrastructure_retries is None:
            infrastructure_retries = 0 if debug else _INFRASTRUCTURE_RETRIES
        about_pod = {name: others.pop(name) for name in POD_OPTIONS if name in others}
        pod = pod_options({**about_pod, "disk": _amount("disk", about_pod.get("disk"))})
        for one in choices:
            _check_pod_for(one, pod)
        return cls(
            accelerator=choices[0],
            fallbacks=choices[1:],
            capacity_timeout=_seconds("capacity_timeout", capacity_timeout) or _CAPACITY_TIMEOUT,
            capture_env_vars=_patterns(capture_env_vars),
            volumes=_volumes(volumes),
            debug=debug,
            memory=_memory(memory),
            timeout=_seconds("timeout", timeout),
            budget=_budget(budget),
            retries=_retries("retries", retries),
            infrastructure_retries=_retries("infrastructure_retries", infrastructure_retries),
            pod=pod,
            requirements=_requirements(requirements),
            **_texts(others),
        )


def _check_pod_for(accelerator: Accelerator, pod: PodOptions) -> None:
    """Raises InvalidRequest for what a pod on this accelerator cannot have."""
    if pod.cpu is not None and accelerator.kind == "cpu" and accelerator.cpu_count:
        raise InvalidRequest(f"cpu={pod.cpu:g}, and {str(accelerator)!r} names cores too: drop one of them")
    if pod.flex_start and (accelerator.spot or accelerator.kind == "cpu"):
        raise InvalidRequest(
            f"flex_start=True is for TPUs and GPUs without spot, not for {str(accelerator)!r}"
        )
    if pod.lease is not None and accelerator.hosts > 1:
        raise InvalidRequest(f"lease= is for jobs of one host; {accelerator.describe()}. Leave it out")


def _texts(given: Mapping[str, Any]) -> dict[str, Any]:
    allowed = (
        "container_image",
        "base_image_repo",
        "zone",
        "project",
        "cluster",
        "backend",
        "namespace",
        "output_dir",
    )
    for name, value in given.items():
        if name not in allowed:
            raise TypeError(f"run() got an unexpected keyword argument {name!r}")
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise InvalidRequest(f"{name}={value!r} must be a non-empty string or None")
    namespace = given.get("namespace")
    if namespace is not None and not _NAMESPACE.fullmatch(namespace):
        raise InvalidRequest(
            f"namespace={namespace!r} is no name of a Kubernetes namespace: lower-case letters, digits and "
            "'-', 63 at most"
        )
    backend = given.get("backend")
    if backend is not None and backend not in BACKENDS:
        raise InvalidRequest(f"backend={backend!r} is not one of {', '.join(BACKENDS)}")
    return {name: value for name, value in given.items() if value is not None}


def _patterns(patterns: Sequence[str] | None) -> tuple[str, ...]:
    if patterns is None:
        return ()
    from kinetic_core.packaging.capture import check_patterns

    return tuple(check_patterns(patterns))


def _requirements(asked: str | Path | Sequence[str] | None) -> str | Path | Sequence[str] | None:
    if asked is None:
        return None
    from kinetic_core.image.discovery import check_requirements

    return check_requirements(asked)


def _volumes(volumes: Mapping[str, Data] | None) -> Mapping[str, Data]:
    if volumes is None:
        return MappingProxyType({})
    if not isinstance(volumes, Mapping):
        raise TypeError(f"volumes={volumes!r} must be a dict of mount path to Data")
    for mount, data in volumes.items():
        if not isinstance(mount, str) or not mount.startswith("/") or mount.rstrip("/") == "":
            raise InvalidRequest(f"volumes: {mount!r} must be an absolute path such as '/data'")
        if ".." in mount.split("/"):
            raise InvalidRequest(f"volumes: {mount!r} must not contain '..'")
        if not isinstance(data, Data):
            raise TypeError(f"volumes[{mount!r}] is a {type(data).__name__}; wrap the path: Data(...)")
    return MappingProxyType(dict(volumes))


def _memory(memory: str | int | None) -> int | None:
    amount = _amount("memory", memory)
    if amount is not None and amount < 4 << 20:
        raise InvalidRequest(f"memory={memory!r} is too little to start Python; give at least '64Mi'")
    return amount


def _amount(option: str, value: str | int | None) -> int | None:
    """Bytes."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if not isinstance(value, str):
        raise TypeError(f"{option}={value!r} must be a text such as '16Gi', or a whole number of bytes")
    text = value.strip()
    digits = text.rstrip("KMGTi")
    try:
        return int(float(digits) * _MEMORY_UNITS[text[len(digits) :]])
    except (ValueError, KeyError, OverflowError):
        raise InvalidRequest(f"{option}={value!r} is not an amount such as '512Mi' or '16Gi'") from None


def _seconds(option: str, seconds: float | None) -> float | None:
    if seconds is None:
        return None
    if not isinstance(seconds, int | float) or isinstance(seconds, bool):
        raise TypeError(f"{option}={seconds!r} must be a number of seconds")
    if not math.isfinite(seconds) or seconds < 1:
        none = "no limit" if option == "timeout" else f"{_CAPACITY_TIMEOUT:g} seconds"
        raise InvalidRequest(f"{option}={seconds!r} must be at least 1 second; None means {none}")
    return float(seconds)


def _budget(budget: float | None) -> float | None:
    if budget is None:
        return None
    if not isinstance(budget, int | float) or isinstance(budget, bool):
        raise TypeError(f"budget={budget!r} must be a number: money, in the currency of your price table")
    if not math.isfinite(budget) or budget <= 0:
        raise InvalidRequest(f"budget={budget!r} must be more than nothing; None means no limit")
    return float(budget)


def _retries(option: str, retries: int) -> int:
    if not isinstance(retries, int) or isinstance(retries, bool):
        raise TypeError(f"{option}={retries!r} must be a whole number")
    if not 0 <= retries <= 100:
        raise InvalidRequest(f"{option}={retries} must be between 0 and 100")
    return retries

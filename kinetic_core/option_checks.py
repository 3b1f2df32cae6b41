"""The checks that the table of options names.

A check takes the name of an option and what was given for it, and returns the value that jobs use. It raises
InvalidRequest, or TypeError for a value of the wrong type, and names the option. A rule takes all options,
when each has been checked, and raises InvalidRequest for what does not go together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kinetic_core._runner.wire import is_encodable
from kinetic_core.accelerators.grammar import Accelerator, parse_accelerator
from kinetic_core.errors import InvalidAccelerator, InvalidRequest

if TYPE_CHECKING:
    from kinetic_core.data.data import Data
    from kinetic_core.options import RunOptions

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")  # RFC 1123 subdomain
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # RFC 1123 label
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?")
_RESERVED_LABELS = ("app", "job-id", "kinetic.dev/")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
_SECRET = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[-\w.]+")
_MANAGED_SECRET = re.compile(
    r"projects/[-a-z0-9:.]+/secrets/[-\w]+(/versions/([0-9]+|latest|[A-Za-z][-\w]*))?"
)
_GROUP_ID = re.compile(r"grp-[a-z0-9]([-a-z0-9]{0,34}[a-z0-9])?")
_TOLERATION = ("effect", "key", "operator", "tolerationSeconds", "value")
_SECURITY_FIELDS = (
    *("allowPrivilegeEscalation", "appArmorProfile", "capabilities", "privileged", "procMount"),
    *(
        "readOnlyRootFilesystem",
        "runAsGroup",
        "runAsNonRoot",
        "runAsUser",
        "seLinuxOptions",
        "seccompProfile",
    ),
)
"""https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#security-context-1"""
_MEMORY_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12} | {
    f"{letter}i": 1 << (10 * power) for power, letter in enumerate("KMGT", start=1)
}
_LEAST_MEMORY = 4 << 20
_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(s|m|h|)")
_UNITS_OF_TIME = {"": 1, "s": 1, "m": 60, "h": 3600}
_LONGEST_DURATION = 24 * 3600
_MOST_CHOICES = 8


# Values of simple types


def truth(name: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be True or False")
    return value


def whole_number(least: int, most: int) -> Callable[[str, object], int]:
    """Return a check for whole numbers from `least` to `most`."""

    def check(name: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name}={value!r} must be a whole number")
        if not least <= value <= most:
            raise InvalidRequest(f"{name}={value} must be between {least} and {most}")
        return value

    return check


def number(of: str, least: float, bound: str) -> Callable[[str, object], float]:
    """Return a check for finite numbers of at least `least`; `of` and `bound` say so to people."""

    def check(name: str, value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError(f"{name}={value!r} must be a number of {of}")
        if not math.isfinite(value) or value < least:
            raise InvalidRequest(f"{name}={value!r} must be {bound}")
        return float(value)

    return check


def text(name: str, value: object) -> str:
    """A text that says something."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidRequest(f"{name}={value!r} must be a non-empty string or None")
    return value


def one_of(*choices: str) -> Callable[[str, object], str]:
    """Return a check for one of some texts."""

    def check(name: str, value: object) -> str:
        if (chosen := text(name, value)) not in choices:
            raise InvalidRequest(f"{name}={chosen!r} is not one of {', '.join(choices)}")
        return chosen

    return check


def backend(name: str, value: object) -> str:
    """The name of a backend."""
    from kinetic_core.settings import BACKENDS

    return one_of(*BACKENDS)(name, value)


def namespace(name: str, value: object) -> str:
    """The name of a Kubernetes namespace."""
    if not _NAMESPACE.fullmatch(given := text(name, value)):
        raise InvalidRequest(
            f"{name}={given!r} cannot be the name of a Kubernetes namespace: use lower-case letters, digits "
            "and '-', 63 at most"
        )
    return given


def object_name(name: str, value: object) -> str:
    """The name of an object of Kubernetes or Google Cloud."""
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise InvalidRequest(
            f"{name}={value!r} cannot be the name of a Kubernetes or Google Cloud object: use lower-case "
            "letters, digits, '-' and '.', 253 at most"
        )
    return value


def amount(name: str, value: object) -> int:
    """An amount of memory or disk, in bytes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r} must be a text such as '16Gi', or a whole number of bytes")
    given = value.strip()
    digits = given.rstrip("KMGTi")
    try:
        return int(float(digits) * _MEMORY_UNITS[given[len(digits) :]])
    except (ValueError, KeyError, OverflowError):
        raise InvalidRequest(f"{name}={value!r} is not an amount such as '512Mi' or '16Gi'") from None


def memory(name: str, value: object) -> int:
    """An amount of memory, in bytes, in which Python can start."""
    if (given := amount(name, value)) < _LEAST_MEMORY:
        raise InvalidRequest(f"{name}={value!r} is too little to start Python; give at least '64Mi'")
    return given


# Hardware


def accelerators(name: str, value: object) -> tuple[Accelerator, ...]:
    """One accelerator, or several in the order in which they are tried."""
    if not isinstance(value, list | tuple):
        return (_accelerator(name, value),)
    if not value:
        raise InvalidAccelerator(f"{name}=[] names nothing: give at least one, such as 'tpu-v6e-8'")
    if len(value) > _MOST_CHOICES:
        raise InvalidRequest(f"{name}= names {len(value)} choices; {_MOST_CHOICES} are the most")
    return tuple(_accelerator(name, one) for one in value)


def _accelerator(name: str, value: object) -> Accelerator:
    if not isinstance(value, str | Accelerator):
        raise TypeError(
            f"{name}={value!r} must be a name such as 'tpu-v6e-8' or 'cpu', or a list of such names"
        )
    return parse_accelerator(value) if isinstance(value, str) else value


def different_choices(options: RunOptions) -> None:
    """Several accelerators must be different, and of one host each."""
    choices = options.choices
    for number_, one in enumerate(choices):
        if one in choices[:number_]:
            raise InvalidAccelerator(f"accelerator={list(map(str, choices))} names {str(one)!r} twice")
        if one.hosts > 1 and len(choices) > 1:
            raise InvalidRequest(
                f"accelerator={list(map(str, choices))}: {one.describe()}. Each of several choices must be "
                "one host; ask for this slice alone"
            )


def one_to_debug(options: RunOptions) -> None:
    """A job that is debugged has one accelerator."""
    if options.debug and options.fallbacks:
        raise InvalidRequest("debug=True is for one accelerator; name the one to debug on")


def cores_said_once(options: RunOptions) -> None:
    """`cpu` and an accelerator such as `cpu:8` exclude each other."""
    cpu = options.pod.cpu
    for one in options.choices:
        if cpu is not None and one.kind == "cpu" and one.cpu_count:
            raise InvalidRequest(f"cpu={cpu:g}, and {str(one)!r} names cores too: drop one of them")


def can_flex_start(options: RunOptions) -> None:
    """GKE makes nodes by flex-start for TPUs and GPUs that are neither reserved nor spot."""
    if not options.pod.flex_start:
        return
    if options.pod.reservation is not None:
        raise InvalidRequest("flex_start=True and reservation= are two ways to get nodes; drop one of them")
    for one in options.choices:
        if one.spot or one.kind == "cpu":
            raise InvalidRequest(f"flex_start=True is for TPUs and GPUs without spot, not for {str(one)!r}")


def duration(name: str, value: object) -> float:
    """Seconds, as a number or as a text such as `90s`, `10m` or `2h`; a day at most."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError(f"{name}={value!r} must be a number of seconds, or a text such as '10m'")
    found = _DURATION.fullmatch(str(value))
    seconds = float(found[1]) * _UNITS_OF_TIME[found[2]] if found else math.nan
    if not 1 <= seconds <= _LONGEST_DURATION:
        raise InvalidRequest(
            f"{name}={value!r} must be seconds, or a text such as '90s', '10m' or '2h': 24h at most"
        )
    return seconds


def can_be_warm(options: RunOptions) -> None:
    """Calls on one pod share its place: what needs a place of its own gets a pod of its own."""
    if options.warm is None:
        return
    asked = {
        "several accelerators": bool(options.fallbacks),
        "backend='pathways'": options.backend == "pathways",
        "debug=": options.debug,
        "volumes=": bool(options.volumes),
        "queue=": options.pod.queue is not None,
        "lease=": options.pod.lease is not None,
    }
    if unfit := [name for name, is_asked in asked.items() if is_asked]:
        raise InvalidRequest(
            f"warm= does not go with {unfit[0]}: such a job has a pod of its own; leave warm= out"
        )


_NOT_ON_WORKERS = ("budget", "cancel_running_on_fail", "hang_after", "reuse")


def many_on_workers(
    options: Mapping[str, object], most: object, what: str = "a map", on: Accelerator | None = None
) -> None:
    """Check that many inputs with these options can run on warm workers, `most` at once, each with `on`.

    Raises InvalidRequest. Options whose value is not known yet may be left out.
    """
    if on is not None and on.hosts > 1:
        raise InvalidRequest(
            f"{what} with warm= does not go with {on}, which has several hosts: leave one of them out"
        )
    for name in _NOT_ON_WORKERS:
        if options.get(name) not in (None, False):
            raise InvalidRequest(f"{what} with warm= does not go with {name}=: leave one of them out")
    if most is None:
        raise InvalidRequest(f"warm= needs max_concurrent= in {what}: so many workers run the inputs")
    if isinstance(most, int) and most > MOST_WORKERS:
        raise InvalidRequest(
            f"{what} with warm= runs on at most {MOST_WORKERS} workers: give a lower max_concurrent="
        )


MOST_WORKERS = 1_000
"""Workers that run the inputs of a map at most: whoever observes one of its inputs asks for all of them."""


def reuse_of_warm(options: RunOptions) -> None:
    """Only a pod that stays has something that a later call can use."""
    if options.reuse is not None and options.warm is None:
        raise InvalidRequest(
            f'reuse="{options.reuse}" says what calls on one pod share: give warm=, too, such as warm="10m"'
        )


def one_host_with_lease(options: RunOptions) -> None:
    """A slice of several hosts ends together, and has no lease of its own."""
    for one in options.choices:
        if options.pod.lease is not None and one.hosts > 1:
            raise InvalidRequest(f"lease= is for jobs of one host; {one.describe()}. Leave it out")


# What ships


def environment_patterns(name: str, value: Sequence[str]) -> tuple[str, ...]:
    """Names of environment variables, or prefixes that end in `*`."""
    from kinetic_core.project.environment import check_patterns

    del name
    return tuple(check_patterns(value))


def requirements(name: str, value: str | Path | Sequence[str]) -> str | Path | Sequence[str] | None:
    """A path of a file with requirements, or a list of them."""
    from kinetic_core.images.discovery import check_requirements

    del name
    return check_requirements(value)


def volumes(name: str, value: object) -> Mapping[str, Data]:
    """Absolute paths to `Data`."""
    from kinetic_core.data.data import Data

    if not isinstance(value, Mapping):
        raise TypeError(f"{name}={value!r} must be a dict of mount path to Data")
    for mount, data in value.items():
        if not isinstance(mount, str) or not mount.startswith("/") or mount.rstrip("/") == "":
            raise InvalidRequest(f"{name}: {mount!r} must be an absolute path such as '/data'")
        if ".." in mount.split("/"):
            raise InvalidRequest(f"{name}: {mount!r} must not contain '..'")
        if not isinstance(data, Data):
            raise TypeError(f"{name}[{mount!r}] is a {type(data).__name__}; wrap the path: Data(...)")
    return MappingProxyType(dict(value))


# Pods


def _texts_by_name(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}={value!r} must be a dict")
    for key, one in value.items():
        if not isinstance(key, str) or not isinstance(one, str):
            raise TypeError(f"{name}: {key!r}: {one!r} must both be strings")
    return dict(value)


def node_labels(name: str, value: object) -> dict[str, str]:
    """Kubernetes labels: keys to values."""
    labels = _texts_by_name(name, value)
    for key, one in labels.items():
        if not (_LABEL_KEY.fullmatch(key) and _LABEL_VALUE.fullmatch(one)):
            raise InvalidRequest(
                f"{name}: {key!r}: {one!r} is not a Kubernetes label: use letters, digits, '-', '_' and '.', "
                "63 at most"
            )
    return labels


def own_labels(name: str, value: object) -> dict[str, str]:
    """Kubernetes labels that Kinetic does not set itself."""
    labels = node_labels(name, value)
    for key in labels:
        if key.startswith(_RESERVED_LABELS):
            raise InvalidRequest(f"{name}: {key!r} is set by Kinetic; choose another key")
    return labels


def secrets(name: str, value: object) -> dict[str, str]:
    """Variables to references of secrets, with a version each of Secret Manager's.

    An error does not repeat what was given for a reference: it may be the secret.
    """
    places = _texts_by_name(name, value)
    for variable, place in places.items():
        is_managed = _MANAGED_SECRET.fullmatch(place)
        if not _VARIABLE.fullmatch(variable) or not (is_managed or _SECRET.fullmatch(place)):
            raise InvalidRequest(
                f"{name}: what is given for {variable!r} is not a reference. Map the name of a variable to "
                "'secret/key' of the namespace, or to 'projects/PROJECT/secrets/NAME' of Secret Manager; "
                "never to the value"
            )
        if is_managed and "/versions/" not in place:
            places[variable] = f"{place}/versions/latest"
    return places


def tolerations(name: str, value: object) -> tuple[dict[str, Any], ...]:
    """Kubernetes tolerations, as its API has them."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name}={value!r} must be a list of Kubernetes tolerations")
    for one in value:
        if not isinstance(one, Mapping) or not one.keys() <= {*_TOLERATION}:
            raise InvalidRequest(f"{name}: {one!r} must be a dict with some of {', '.join(_TOLERATION)}")
    return tuple(dict(one) for one in value)


def security_context(name: str, value: object) -> dict[str, Any]:
    """Fields of a container's securityContext."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}={value!r} must be a dict")
    if unknown := sorted(value.keys() - {*_SECURITY_FIELDS}):
        raise InvalidRequest(
            f"{name}: a container's securityContext has no {', '.join(map(repr, unknown))}; it has "
            f"{', '.join(_SECURITY_FIELDS)}"
        )
    return dict(value)


# Batches


def limit(name: str, value: object) -> int | None:
    """A whole number of at least 1, or None."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be a whole number")
    if value < 1:
        raise InvalidRequest(f"{name}={value} must be at least 1, or None for no limit")
    return value


def batch_id(name: str, value: object) -> str:
    """An id for a batch that its caller chooses."""
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r} must be a text such as 'grp-sweep-7'")
    if not _GROUP_ID.fullmatch(value):
        raise InvalidRequest(
            f"{name}={value!r} must be 'grp-' and lower-case letters, digits and '-', 40 at most"
        )
    return value


def title(name: str, value: object) -> str:
    """A text, which may be empty."""
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r} must be a text")
    _require_encodable(name, value)
    return value


def tags(name: str, value: object) -> dict[str, str]:
    """What is kept with a batch."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}={value!r} must be a dict")
    for text_of_tag in filter(lambda each: isinstance(each, str), chain(value, value.values())):
        _require_encodable(name, text_of_tag)
    return dict(value)


def _require_encodable(name: str, value: str) -> None:
    """Raise InvalidRequest for a text that no record can hold: every reader would refuse it."""
    if not is_encodable(value):
        raise InvalidRequest(f"{name}: {value!r} cannot be encoded as UTF-8; give another text")

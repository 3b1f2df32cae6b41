"""Capturing environment variables for a job: which, and which never by accident."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from kinetic_core.errors import InvalidRequest

NEVER_BY_WILDCARD = frozenset(
    (
        *("PATH", "HOME", "PYTHONPATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "SHELL", "PWD", "OLDPWD"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "TMPDIR", "TEMP", "TMP", "KERAS_BACKEND"),
        *("JAX_PLATFORMS", "JAX_PLATFORM_NAME", "PJRT_DEVICE", "CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS"),
        *("HOSTNAME", "USER", "LOGNAME", "SSH_AUTH_SOCK", "KUBERNETES_SERVICE_HOST"),
    )
)
"""Variables that describe this machine; a job that inherited them would break. Named exactly, they go."""

_SECRET = re.compile("TOKEN|SECRET|KEY|PASSWORD|CREDENTIAL", re.IGNORECASE)
_RESERVED = "KINETIC_"
_OURS_TO_SET = frozenset({"KINETIC_OUTPUT_DIR"})


def looks_secret(name: str) -> bool:
    """Return whether a variable of this name may hold a secret, as far as its name says."""
    return _SECRET.search(name) is not None


def check_patterns(patterns: Sequence[str]) -> Sequence[str]:
    """The patterns as given. Raises TypeError or InvalidRequest, naming the bad one."""
    if isinstance(patterns, str) or not isinstance(patterns, Sequence):
        raise TypeError(f"capture_env_vars={patterns!r} must be a list of names, such as ['WANDB_*']")
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"capture_env_vars: {pattern!r} is not a string")
        if not re.fullmatch(r"[^=\0\s*]+\*?|\*", pattern):
            raise InvalidRequest(
                f"capture_env_vars: {pattern!r} is not a name; give names or prefixes ending in '*', values "
                "are read from the environment"
            )
    return patterns


def capture(patterns: Iterable[str], environ: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The captured variables by name, and notices about those left out and those that look secret."""
    patterns = list(patterns)
    exact = {pattern for pattern in patterns if not pattern.endswith("*")}
    prefixes = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
    captured = {name: environ[name] for name in exact if name in environ}
    skipped: list[str] = []
    for name, value in environ.items():
        if name in captured or not prefixes or not name.startswith(prefixes):
            continue
        if name in NEVER_BY_WILDCARD or (name.startswith(_RESERVED) and name not in _OURS_TO_SET):
            skipped.append(name)
        else:
            captured[name] = value
    notices = []
    missing = sorted(exact - captured.keys())
    if missing:
        notices.append(f"capture_env_vars: {', '.join(missing)} is not set here, so the job will not see it")
    if skipped:
        notices.append(f"not captured by '*' (name them to capture them): {', '.join(sorted(skipped))}")
    secrets = sorted(filter(looks_secret, captured))
    if secrets:
        notices.append(
            f"{', '.join(secrets)}: the values are stored in plain text with the job, readable by whoever "
            "can read the store. secrets= hands them over by reference"
        )
    return dict(sorted(captured.items())), tuple(notices)

"""Dependencies that a base image lacks, installed by uv before user code: `container_image="prebuilt"`.

One resolution prefers the packages of the image, which are not installed again. The first host of the first
attempt keeps the result in the store, signed, so that all others have the same and nobody else's. Missing
packages go into a virtual environment on the pod's own volume, which only this user must be able to write.
"""

from __future__ import annotations

import http.client
import os
import re
import sys
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from . import object_names
from .attempt import Job
from .http_pool import HttpPool
from .notes import read_start, sign_note, verified_note
from .processes import errors_of
from .store import MissingObject, Store, StoreUnavailable

_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)\s*==\s*([^\s;\\]+)")
_NAME = re.compile(r"^([A-Za-z0-9][\w.-]*)")
_URL = re.compile(r"https?://[^\s'\"]+")
_INDEX = "https://pypi.org"
"""What uv asks unless another index takes its place, or none."""
_NO_DEFAULT = ("--index-url", "--default-index", "--no-index")
_NO_DEFAULT_VARIABLES = ("UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_NO_INDEX", "UV_OFFLINE")
_PROBE_SECONDS = 10.0


def install(wanted: dict[str, Any], job: Job, store: Store, place: str) -> None:
    """Make `wanted` importable: `lines` and `constraints` of requirements files, and `options` of uv.

    The packages are installed below the directory `place`. Their exact versions are those of the job's lock
    in the store, which is created here if it is missing.

    Raises ValueError for packages that cannot be installed, ForgedNote for a lock that the job has not
    signed, StoreUnavailable if an index does not answer.
    """
    folder = os.path.join(place, "dependencies")
    os.makedirs(folder, exist_ok=True)
    locked = _locked(wanted, folder, job, store)
    has = _installed()
    missing = [line for line in locked if not _is_there(line, has)]
    environment = os.path.join(place, "venv")
    _uv(wanted, "venv", "--system-site-packages", "--clear", "--python", sys.executable, environment)
    if missing:
        hashes = {
            _normal(name[1]): line
            for line in wanted["lines"]
            if "--hash=" in line and (name := _NAME.match(line))
        }
        lines = [hashes.get(_normal(_NAME.match(line)[1]), line) for line in missing]  # type: ignore[index]
        options = [line for line in wanted["lines"] if line.startswith("-")]
        listed = _written(folder, "install.txt", [*options, *lines])
        python = os.path.join(environment, "bin", "python")
        sys.stderr.write(f"kinetic: installing {len(missing)} packages\n")
        _uv(wanted, "pip", "install", "--python", python, "--no-deps", *wanted["options"], "-r", listed)
    enter(place)


def _locked(wanted: dict[str, Any], folder: str, job: Job, store: Store) -> list[str]:
    """Return exact versions of everything; hosts that start together use those that are stored first."""
    name, key = object_names.lock(job.job_id), job.key_of_lock()
    try:
        content = read_start(store, name)
    except MissingObject:
        lines = _resolved(wanted, folder)
        if store.create_if_absent(name, sign_note(key, {"requirements": lines})):
            return lines
        content = read_start(store, name)
    return list(verified_note(key, name, content)["requirements"])


def _resolved(wanted: dict[str, Any], folder: str) -> list[str]:
    """Resolve exact versions of everything, those of the image where they fit."""
    asked = _written(folder, "requirements.txt", wanted["lines"])
    limits = _written(folder, "constraints.txt", wanted["constraints"])
    locked = _written(
        folder, "locked.txt", [f"{name}=={version}" for name, version in sorted(_installed().items())]
    )
    limited = ["-c", limits] if wanted["constraints"] else []
    _uv(
        wanted,
        *("pip", "compile", "--python", sys.executable, "--no-header", "--no-annotate", "--no-strip-markers"),
        *("-o", locked, *wanted["options"], *limited, asked),
    )
    with open(locked) as stream:
        return [line.strip() for line in stream if _NAME.match(line)]


def _installed() -> dict[str, str]:
    from importlib.metadata import distributions

    return {_normal(found.name): found.version for found in distributions() if found.name}


def _is_there(line: str, has: dict[str, str]) -> bool:
    pin = _PIN.match(line)
    return pin is not None and has.get(_normal(pin[1])) == pin[2]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()  # PEP 503


def _written(folder: str, name: str, lines: list[str]) -> str:
    path = os.path.join(folder, name)
    with open(path, "w") as stream:
        stream.writelines(f"{line}\n" for line in lines)
    return path


def _uv(wanted: dict[str, Any], *arguments: str) -> None:
    """Run uv, again if all services that it needs answer: one may have been away for a moment.

    uv's exit codes do not tell an index that is away from a package that is not there, and its words are not
    for programs. Raises StoreUnavailable if a service does not answer, ValueError for any other failure.
    """
    for is_last in (False, True):
        code, errors = _errors_of_uv(*arguments)
        if code == 0:
            return
        told = errors[-2000:]
        for service in _services(wanted):
            if not _answers(service):
                raise StoreUnavailable(f"the package index at {service} cannot be reached:\n{told}")
        if is_last:
            raise ValueError(f"the dependencies cannot be installed:\n{told}")


def _errors_of_uv(*arguments: str) -> tuple[int, str]:
    try:
        return errors_of("uv", "--quiet", "--no-progress", *arguments)
    except FileNotFoundError:
        raise ValueError(
            "the image has no uv, which container_image='prebuilt' installs packages with: make the base "
            "image with kinetic_core.build_image()"
        ) from None


def _services(wanted: dict[str, Any]) -> list[str]:
    """Return the addresses of the services that packages come from, without paths and credentials."""
    texts = [*wanted["lines"], *wanted["constraints"], *wanted["options"]]
    has_default = not any(option in text for option in _NO_DEFAULT for text in texts)
    has_default &= not any(os.environ.get(name) for name in _NO_DEFAULT_VARIABLES)
    texts += [value for name, value in os.environ.items() if name.startswith("UV_")]
    urls = [urlsplit(found) for text in texts for found in _URL.findall(text)]
    named = {f"{url.scheme}://{url.netloc.rpartition('@')[2]}" for url in urls}
    return sorted(named | ({_INDEX} if has_default else set()))


def _answers(service: str) -> bool:
    """Return whether a service answers a request, if only to refuse it."""
    pool = HttpPool(service)
    try:
        status = pool.send("HEAD", "/", None, {}, None, _PROBE_SECONDS).status
    except (OSError, http.client.HTTPException):
        return False
    finally:
        pool.close()
    return status < HTTPStatus.INTERNAL_SERVER_ERROR


def enter(place: str) -> None:
    """Let this process and those it starts find what is installed below `place` before what the image has."""
    import importlib
    import site
    import sysconfig

    environment = os.path.join(place, "venv")
    base = sysconfig.get_path("purelib")
    scheme = {"base": environment, "platbase": environment}
    packages = sysconfig.get_path("purelib", "venv", scheme)
    with open(os.path.join(packages, "kinetic-image.pth"), "w") as stream:
        stream.write(base + "\n")  # the image's Python may be a virtual environment itself
    before = list(sys.path)
    site.addsitedir(packages)
    sys.path[:] = [entry for entry in sys.path if entry not in before] + before
    importlib.invalidate_caches()
    os.environ["VIRTUAL_ENV"] = environment
    os.environ["PATH"] = os.path.join(environment, "bin") + os.pathsep + os.environ.get("PATH", os.defpath)

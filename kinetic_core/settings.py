"""Settings, read from environment and profile when a client is made, here and nowhere else.

Precedence of every value: argument of the call, then a connection the call names, then environment variable,
then profile, then default.
Nothing is ever written back to the environment.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from kinetic_core.errors import ConfigurationError
from kinetic_core.profiles import OVERRIDES, profiles_file, read_profiles


@dataclass(frozen=True)
class Account:
    """Google's credentials (a `google.auth.credentials.Credentials`), or the configuration of a Kubernetes
    client (a `kubernetes.client.Configuration`).

    `name` is for people. Two of the same name and version are equal, and share connections; credentials that
    were replaced have another version. What is held is never shown, and never leaves the process.
    """

    name: str
    version: str
    held: Any = field(compare=False, repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"the credentials of {self.name} stay in this process: they cannot be pickled")


BACKENDS = ("local", "gke", "pathways")
ENDPOINT_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_"
"""What gcloud's own variables for the addresses of Google's services begin with."""


@dataclass(frozen=True)
class Settings:
    """What environment and profile say.

    Sizes are in bytes, 0 turning a warning off. `package_root` and `output_dir` are None unless set.
    """

    backend: str | None = None
    """`KINETIC_BACKEND`: used when the call names none."""
    local_store: Path = Path("~/.kinetic/local")
    """`KINETIC_LOCAL_STORE`: where the local backend keeps jobs and objects."""
    cache: Path = Path("~/.cache/kinetic")
    """`XDG_CACHE_HOME`/kinetic: the index that makes an unchanged project cheap. Safe to delete."""
    project: str = ""
    """`KINETIC_PROJECT`; after the profile, `GOOGLE_CLOUD_PROJECT`."""
    zone: str = "us-central1-a"
    cluster: str = "kinetic-cluster"
    namespace: str = "default"
    kubeconfig: str = ""
    """`KINETIC_KUBECONFIG`: connect with this file instead of asking the GKE API."""
    kube_context: str = ""
    """`KINETIC_KUBE_CONTEXT`: a context in it, instead of its current one."""
    bucket: str = ""
    """`KINETIC_BUCKET`: `bucket` or `bucket/prefix` for everything jobs store."""
    container_image: str = ""
    """`KINETIC_CONTAINER_IMAGE`: as `container_image=`."""
    storage_emulator_host: str = ""
    """`STORAGE_EMULATOR_HOST`: replaces Cloud Storage, for pods too."""
    api_endpoint_overrides: Mapping[str, str] = field(default_factory=dict, hash=False)
    """`CLOUDSDK_API_ENDPOINT_OVERRIDES_{SERVICE}`: a service's name in lower case to its address."""

    base_image_repo: str = ""
    """`KINETIC_BASE_IMAGE_REPO`: as `base_image_repo=`."""
    package_root: str | None = None
    """`KINETIC_PACKAGE_ROOT`: the project directory, instead of detecting it."""
    default_excludes: bool = True
    """False with `KINETIC_NO_DEFAULT_EXCLUDES=1`: ship virtualenvs and caches too."""
    project_warn_bytes: int = 100 << 20
    """`KINETIC_CONTEXT_SIZE_WARN_MB`."""
    payload_warn_bytes: int = 50 << 20
    """`KINETIC_PAYLOAD_SIZE_WARN_MB`."""
    output_dir: str | None = None
    """`KINETIC_OUTPUT_DIR`: where outputs go when the call does not say."""
    hub_endpoint: str = ""
    """`HF_ENDPOINT`: another Hugging Face Hub, for `hf://` data."""
    prices: str = ""
    """`KINETIC_PRICES`: a price table for costs in money, see `jobs.cost.read_prices`."""
    user: str = ""
    """`KINETIC_USER`: who submits, for lists and costs, which believe it; default: the login's name."""
    debug_port: int = 5678
    """`KINETIC_DEBUG_PORT`: the local port at which a call with `debug=True` offers its debugger."""
    debug_wait: float = 600.0
    """`KINETIC_DEBUG_WAIT_TIMEOUT`: seconds for which a job with `debug=True` waits for a debugger."""
    debug_without_tty: bool = False
    """`KINETIC_NO_TTY_DEBUG=1`: such a call needs no terminal."""
    profile: str | None = None
    """The profile these come from: `KINETIC_PROFILE`, else the file's current one."""
    google_account: Account | None = None
    """Whose credentials Google's services see; None for those of the surroundings."""
    kubernetes_account: Account | None = None
    """The cluster to connect to, and as whom; None for what the settings above say."""
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where each setting that is no default comes from: a variable, "profile NAME", "argument", ..."""

    def origin(self, name: str) -> str:
        """Where a setting comes from, in words."""
        return self.origins.get(name, "default")

    def with_arguments(self, **arguments: str | None) -> Settings:
        """With what a call says of `project`, `zone`, `cluster`, `namespace`; None leaves a setting alone.

        A call that names a GKE cluster means it: no kubeconfig or Kubernetes account is used then.
        """
        given: dict[str, Any] = {name: value for name, value in arguments.items() if value is not None}
        if not given:
            return self
        if given.keys() & set(_GKE):
            given |= {"kubeconfig": "", "kube_context": "", "kubernetes_account": None}
        return replace(self, **given, origins={**self.origins, **dict.fromkeys(given, "argument")})


_VARIABLES = {
    "backend": "KINETIC_BACKEND",
    "local_store": "KINETIC_LOCAL_STORE",
    "project": "KINETIC_PROJECT",
    "zone": "KINETIC_ZONE",
    "cluster": "KINETIC_CLUSTER",
    "namespace": "KINETIC_NAMESPACE",
    "kubeconfig": "KINETIC_KUBECONFIG",
    "kube_context": "KINETIC_KUBE_CONTEXT",
    "bucket": "KINETIC_BUCKET",
    "container_image": "KINETIC_CONTAINER_IMAGE",
    "storage_emulator_host": "STORAGE_EMULATOR_HOST",
    "base_image_repo": "KINETIC_BASE_IMAGE_REPO",
    "package_root": "KINETIC_PACKAGE_ROOT",
    "default_excludes": "KINETIC_NO_DEFAULT_EXCLUDES",
    "project_warn_bytes": "KINETIC_CONTEXT_SIZE_WARN_MB",
    "payload_warn_bytes": "KINETIC_PAYLOAD_SIZE_WARN_MB",
    "output_dir": "KINETIC_OUTPUT_DIR",
    "hub_endpoint": "HF_ENDPOINT",
    "prices": "KINETIC_PRICES",
    "user": "KINETIC_USER",
    "debug_port": "KINETIC_DEBUG_PORT",
    "debug_wait": "KINETIC_DEBUG_WAIT_TIMEOUT",
    "debug_without_tty": "KINETIC_NO_TTY_DEBUG",
}


STATED = frozenset({"profile", *_VARIABLES})
"""Names of what a connection or a client may state in place of the environment."""
_GKE = ("project", "zone", "cluster")
_CLUSTER = (*_GKE, "kubeconfig", "kube_context")
_LOGIN = ("LOGNAME", "USER", "LNAME", "USERNAME")
"""Variables with the name of the login, as `getpass.getuser` reads them."""


def read_settings(
    environ: Mapping[str, str] | None = None,
    stated: Mapping[str, str] | None = None,
    by: str | Mapping[str, str] = "",
) -> Settings:
    """The settings in `environ` (default: this process's environment) and in the profile it chooses.

    `stated`, settings and a `profile` by their names, comes before the environment; `by` says who states it,
    or of each setting which option of the command. Raises ConfigurationError, naming the option, the
    variable, or the file and field, for a value that cannot be used.
    """
    env, stated = os.environ if environ is None else environ, stated or {}
    if profile := stated.get("profile"):
        env = {**env, "KINETIC_PROFILE": profile}
    name, fields = _chosen_profile(env)
    found: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for setting, variable in _VARIABLES.items():
        if text := stated.get(setting):
            found[setting], origins[setting] = text, by if isinstance(by, str) else by[setting]
        elif text := env.get(variable):
            found[setting], origins[setting] = text, variable
        elif setting in fields:
            found[setting], origins[setting] = fields[setting], f"profile {name}"
    _add_last_resort(env, found, origins)
    _add_endpoints(env, fields, name, found, origins)
    _prefer_named_cluster(found, origins, stated)
    if cache := env.get("XDG_CACHE_HOME"):
        found["cache"], origins["cache"] = str(Path(cache, "kinetic")), "XDG_CACHE_HOME"
    if name is not None:
        origins["profile"] = "KINETIC_PROFILE" if env.get("KINETIC_PROFILE") else str(profiles_file(env))
    return Settings(**_converted(found, origins), profile=name, origins=origins)


def settings_of_profiles(environ: Mapping[str, str] | None = None) -> list[Settings]:
    """As if each of the machine's profiles were chosen, and what it says, and any cluster, were said by no
    variable: the places that whoever keeps this machine has named. Raises ConfigurationError.
    """
    env = os.environ if environ is None else environ
    found = []
    for name, fields in read_profiles(profiles_file(env)).profiles.items():
        said = {variable for setting, variable in _VARIABLES.items() if setting in {*fields, *_CLUSTER}}
        left = {variable: text for variable, text in env.items() if variable not in said}
        found.append(read_settings({**left, "KINETIC_PROFILE": name}))
    return found


def log_level(environ: Mapping[str, str] | None = None) -> int:
    """`KINETIC_LOG_LEVEL`: how much appears on stderr, as `logging` counts; INFO for any other word."""
    name = (os.environ if environ is None else environ).get("KINETIC_LOG_LEVEL", "")
    return logging.getLevelNamesMapping().get(name.upper(), logging.INFO)


def set_up_logging(*, always: bool = False) -> None:
    """Let what the library logs appear on stderr from `KINETIC_LOG_LEVEL` on, unless the program has said
    where its log goes. Without that variable nothing happens, or with `always` as if it were INFO. A word
    that is no level is told of: how much is said is no reason to refuse a job.
    """
    name = os.environ.get("KINETIC_LOG_LEVEL", "")
    if not (always or name):
        return
    logger = logging.getLogger("kinetic_core")
    logger.setLevel(log_level())
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
    if name and name.upper() not in logging.getLevelNamesMapping():
        logger.warning(
            "KINETIC_LOG_LEVEL=%r counts as INFO: it is not one of DEBUG, INFO, WARNING, ERROR, FATAL", name
        )


def _chosen_profile(env: Mapping[str, str]) -> tuple[str | None, Mapping[str, Any]]:
    profiles = read_profiles(profiles_file(env))
    if name := env.get("KINETIC_PROFILE"):
        return name, profiles.get(name)
    return profiles.current, profiles.profiles[profiles.current] if profiles.current else {}


def _add_last_resort(env: Mapping[str, str], found: dict[str, Any], origins: dict[str, str]) -> None:
    if "project" not in found and (project := env.get("GOOGLE_CLOUD_PROJECT")):
        found["project"], origins["project"] = project, "GOOGLE_CLOUD_PROJECT"
    if "user" not in found:
        variable = next(filter(env.get, _LOGIN), "")
        if login := env.get(variable) or login_name():
            found["user"], origins["user"] = login, variable or "the password database"


def login_name(uid: int | None = None) -> str:
    """The name of a user, default: of this process's, in the password database; "" if that has none, as in
    many containers.
    """
    try:
        from pwd import getpwuid

        return getpwuid(os.getuid() if uid is None else uid).pw_name
    except (ImportError, KeyError):
        return ""


def _add_endpoints(
    env: Mapping[str, str],
    fields: Mapping[str, Any],
    profile: str | None,
    found: dict[str, Any],
    origins: dict[str, str],
) -> None:
    """Service by service: a variable says nothing about the others."""
    told = {
        variable.removeprefix(ENDPOINT_VARIABLE).lower(): address
        for variable, address in env.items()
        if variable.startswith(ENDPOINT_VARIABLE) and address
    }
    kept = fields.get(OVERRIDES, {})
    if told or kept:
        found[OVERRIDES] = {**kept, **told}
        origins[OVERRIDES] = f"{ENDPOINT_VARIABLE}*" if told else f"profile {profile}"


def _prefer_named_cluster(found: dict[str, Any], origins: dict[str, str], stated: Mapping[str, str]) -> None:
    """What names a GKE cluster outranks the kubeconfig of what comes after it."""
    named = {origins.get("project"), origins.get("cluster")}
    outranked = origins.get("kubeconfig", "").startswith("profile ")
    if (outranked and named & {"KINETIC_PROJECT", "KINETIC_CLUSTER"}) or (
        any(map(stated.get, _GKE)) and not stated.get("kubeconfig")
    ):
        for setting in ("kubeconfig", "kube_context"):
            found.pop(setting, None)
            origins.pop(setting, None)


def _converted(found: Mapping[str, Any], origins: Mapping[str, str]) -> dict[str, Any]:
    """Texts as the values the settings hold."""
    values = dict(found)
    if "backend" in values:
        check_backend(values["backend"], origins["backend"])
    values["local_store"] = _directory(values.get("local_store", Settings.local_store))
    values["cache"] = Path(values.get("cache", Settings.cache)).expanduser()
    for setting in values.keys() & {"kubeconfig", "prices"}:
        values[setting] = os.path.expanduser(values[setting])  # noqa: PTH111  kept as it was written
    if "default_excludes" in values:
        origin = origins["default_excludes"]
        is_on = _switch(origin, values["default_excludes"])
        # The variable says the opposite of the setting, which a client states as it is.
        values["default_excludes"] = not is_on if origin == _VARIABLES["default_excludes"] else is_on
    if "debug_without_tty" in values:
        values["debug_without_tty"] = _switch(origins["debug_without_tty"], values["debug_without_tty"])
    if "debug_port" in values:
        values["debug_port"] = _number(int, origins["debug_port"], values["debug_port"], 65535)
    if "debug_wait" in values:
        values["debug_wait"] = _number(float, origins["debug_wait"], values["debug_wait"], 7 * 86400)
    for setting in ("project_warn_bytes", "payload_warn_bytes"):
        if setting in values:
            values[setting] = _megabytes(origins[setting], values[setting])
    return values


def check_backend(backend: str, origin: str) -> None:
    """Raise ConfigurationError, naming the origin of the setting, for a backend that there is not."""
    if backend in BACKENDS:
        return
    is_named = origin.isupper() or origin.startswith("--")
    said = f"{origin}={backend!r}" if is_named else f"backend={backend!r} of {origin}"
    close = "".join(f". Did you mean {one!r}?" for one in get_close_matches(backend, BACKENDS, n=1))
    raise ConfigurationError(f"{said} is not one of {', '.join(BACKENDS)}{close}")


def _directory(path: str | Path) -> Path:
    return Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100  resolve() would follow the user's links


def _number(kind: type[int] | type[float], name: str, text: str, most: int) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = -1
    if not 0 <= value <= most:
        whole = "a whole number" if kind is int else "a number"
        raise ConfigurationError(f"{name}={text!r} is not {whole} from 0 to {most}")
    return value


def _megabytes(name: str, text: str) -> int:
    try:
        size = float(text) * (1 << 20)
    except ValueError:
        size = -1.0
    if not 0 <= size < float("inf"):
        raise ConfigurationError(f"{name}={text!r} is not a number of megabytes (0 turns it off)")
    return int(size)


def _switch(name: str, text: str) -> bool:
    """Whether a switch is on; its words are those of Airflow's own settings."""
    word = text.strip().lower()
    if word not in ("1", "t", "true", "0", "f", "false"):
        raise ConfigurationError(f"{name}={text!r} is neither true nor false: set it to 1 or 0")
    return word in ("1", "t", "true")

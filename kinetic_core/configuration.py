"""The settings of this process, read from the environment once per call, here and nowhere else.

Precedence of every value: argument of the call, then environment variable, then default. Nothing is
ever written back to the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kinetic_core.errors import ConfigurationError

BACKENDS = ("local", "gke", "pathways")


@dataclass(frozen=True)
class Settings:
    """What the environment says.

    Sizes are in bytes, 0 turning a warning off. `package_root` and `output_dir` are None unless set.
    """

    backend: str | None = None
    """`KINETIC_BACKEND`: used when the call names none."""
    local_store: Path = Path("~/.kinetic/local")
    """`KINETIC_LOCAL_STORE`: where the local backend keeps jobs and objects."""
    cache: Path = Path("~/.cache/kinetic")
    """`XDG_CACHE_HOME`/kinetic: the index that makes an unchanged project cheap. Safe to delete."""
    project: str = ""
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


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings in `environ` (default: this process's environment).

    Raises ConfigurationError, naming the variable, for a value that cannot be used.
    """
    env = os.environ if environ is None else environ
    backend = env.get("KINETIC_BACKEND") or None
    if backend is not None and backend not in BACKENDS:
        raise ConfigurationError(f"KINETIC_BACKEND={backend!r} is not one of {', '.join(BACKENDS)}")
    cache = Path(env["XDG_CACHE_HOME"]) / "kinetic" if env.get("XDG_CACHE_HOME") else Settings.cache
    return Settings(
        backend=backend,
        local_store=_directory(env.get("KINETIC_LOCAL_STORE"), Settings.local_store),
        cache=cache.expanduser(),
        project=env.get("KINETIC_PROJECT") or env.get("GOOGLE_CLOUD_PROJECT") or Settings.project,
        zone=env.get("KINETIC_ZONE") or Settings.zone,
        cluster=env.get("KINETIC_CLUSTER") or Settings.cluster,
        namespace=env.get("KINETIC_NAMESPACE") or Settings.namespace,
        kubeconfig=os.path.expanduser(env.get("KINETIC_KUBECONFIG") or ""),  # noqa: PTH111  "" stays ""
        kube_context=env.get("KINETIC_KUBE_CONTEXT") or "",
        bucket=env.get("KINETIC_BUCKET") or "",
        container_image=env.get("KINETIC_CONTAINER_IMAGE") or "",
        package_root=env.get("KINETIC_PACKAGE_ROOT") or None,
        default_excludes=env.get("KINETIC_NO_DEFAULT_EXCLUDES") != "1",
        project_warn_bytes=_megabytes(env, "KINETIC_CONTEXT_SIZE_WARN_MB", Settings.project_warn_bytes),
        payload_warn_bytes=_megabytes(env, "KINETIC_PAYLOAD_SIZE_WARN_MB", Settings.payload_warn_bytes),
        output_dir=env.get("KINETIC_OUTPUT_DIR") or None,
        hub_endpoint=env.get("HF_ENDPOINT") or "",
    )


def _directory(text: str | None, default: Path) -> Path:
    path = Path(text or default).expanduser()
    return Path(os.path.abspath(path))  # noqa: PTH100  resolve() would follow the user's links


def _megabytes(env: Mapping[str, str], name: str, default: int) -> int:
    text = env.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        raise ConfigurationError(f"{name}={text!r} is not a number of megabytes (0 turns it off)") from None
    return int(value * (1 << 20))

"""Kubeconfigs that are read without the `kubernetes` package, whose import takes longer than a warm call.

Only those of which every word is known here, such as gcloud, kind, minikube and k3s write. The package reads
all others.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GKE_PLUGIN = "gke-gcloud-auth-plugin"
_OF_CLUSTER = {
    "certificate-authority",
    "certificate-authority-data",
    "extensions",
    "insecure-skip-tls-verify",
    "server",
    "tls-server-name",
}
_OF_USER = {
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
    "exec",
    "extensions",
    "token",
}


@dataclass(frozen=True)
class Access:
    """Address of an API server, and how it and the user are known. Certificates and keys are PEM.

    `is_google`: the user has a token of Google's.
    """

    host: str
    authority: str | None = None
    certificate: bytes = b""
    key: bytes = b""
    token: str = ""
    is_google: bool = False
    is_verified: bool = True
    server_name: str | None = None


def read_access(path: str, context: str = "") -> Access | None:
    """Return what a kubeconfig says of a context ("" for its current one).

    None if it is not a file of the known kind, or says anything that is not known here.
    """
    import yaml  # type: ignore[import-untyped]

    try:
        file = Path(path).expanduser()
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        content = yaml.load(file.read_bytes(), loader)  # noqa: S506  # both are safe
        used = _named(content, "context", context or content["current-context"])
        cluster, user = _named(content, "cluster", used["cluster"]), _named(content, "user", used["user"])
        program = Path(user["exec"]["command"]).name if "exec" in user else GKE_PLUGIN
        if not set(cluster) <= _OF_CLUSTER or not set(user) <= _OF_USER or program != GKE_PLUGIN:
            return None
        authority = _pem(file, cluster, "certificate-authority")
        return Access(
            host=cluster["server"].rstrip("/"),
            authority=authority.decode() if authority else None,
            certificate=_pem(file, user, "client-certificate"),
            key=_pem(file, user, "client-key"),
            token=user.get("token") or "",
            is_google="exec" in user,
            is_verified=not cluster.get("insecure-skip-tls-verify"),
            server_name=cluster.get("tls-server-name"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError):
        return None  # the package says what is wrong with it


def _named(content: Any, kind: str, name: str) -> dict[str, Any]:
    """Return the one cluster, user or context of that name."""
    (found,) = [each[kind] for each in content[f"{kind}s"] if each["name"] == name]
    return dict(found)


def _pem(file: Path, of: dict[str, Any], name: str) -> bytes:
    """Return a certificate or key that a kubeconfig has in it or names, b"" for none."""
    if f"{name}-data" in of:
        return base64.b64decode(of[f"{name}-data"])
    return Path(file.parent, of[name]).read_bytes() if name in of else b""

"""Secret of a namespace, from which the keys of its jobs' outcomes are derived."""

from __future__ import annotations

import base64
import logging
import secrets
import time
from dataclasses import dataclass

from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
from kinetic_core.backends.kubernetes.names import SIGNING_SECRET
from kinetic_core.connections import Connections
from kinetic_core.errors import ClusterError

_KEPT_SECONDS = 600.0
"""Seconds for which a client keeps a secret that it has read: somebody may replace the Secret."""
_LOG = logging.getLogger(__name__)


@dataclass
class _Read:
    """Secret that was read, and when (monotonic)."""

    at: float = float("-inf")
    secret: bytes | None = None


def read_secret(
    target: Target, connections: Connections, namespace: str, *, make: bool = False
) -> bytes | None:
    """Read the namespace's secret, and create it if `make`. None if there is none, or it is not readable.

    Raises ClusterError if the API server cannot answer.
    """
    known = connections.get((read_secret, target, namespace), _Read)
    if time.monotonic() - known.at >= _KEPT_SECONDS or (make and known.secret is None):
        known.secret = _ask(ClusterApi(target, connections), namespace, make)
        known.at = time.monotonic()
    return known.secret


def _ask(api: ClusterApi, namespace: str, make: bool) -> bytes | None:
    try:
        found = api.get("Secret", namespace, SIGNING_SECRET)
        if found is None and make:
            found = _make(api, namespace)
    except ClusterError as exc:
        if exc.status != 403:
            raise
        _LOG.warning(
            "kinetic: this account may not use the Secret %s of namespace %s: outcomes can be verified only "
            "until their Jobs are removed. See the role in docs/guides/clusters.md (%s)",
            SIGNING_SECRET,
            namespace,
            exc,
        )
        return None
    try:
        return None if found is None else base64.b64decode(found["data"]["key"], validate=True) or None
    except (KeyError, TypeError, ValueError):
        _LOG.warning("kinetic: the Secret %s of namespace %s has no key", SIGNING_SECRET, namespace)
        return None


def _make(api: ClusterApi, namespace: str) -> dict[str, object] | None:
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "immutable": True,
        "metadata": {"name": SIGNING_SECRET, "namespace": namespace, "labels": {"kinetic": "true"}},
        "data": {"key": base64.b64encode(secrets.token_bytes(32)).decode()},
    }
    try:
        return api.create_or_read("Secret", namespace, body)[0]
    except ClusterError as exc:
        if exc.status == 404:  # no such namespace: whoever creates the Job says so
            return None
        raise

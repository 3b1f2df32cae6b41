"""A queue of Kueue that admits nothing, for a test cluster without Kueue: its jobs stay suspended."""

from __future__ import annotations

import time
from typing import Any

from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.errors import ClusterError

_GROUP = "kueue.x-k8s.io"
_NAMES = {"plural": "localqueues", "singular": "localqueue", "kind": "LocalQueue"}
_ANYTHING = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
_CRD = "CustomResourceDefinition"
_DEFINITION: dict[str, Any] = {
    "metadata": {"name": f"localqueues.{_GROUP}"},
    "spec": {
        "group": _GROUP,
        "names": _NAMES,
        "scope": "Namespaced",
        "versions": [{"name": "v1beta1", "served": True, "storage": True, "schema": _ANYTHING}],
    },
}
_SERVED_SECONDS = 30.0


def make_queue(api: ClusterApi, namespace: str, name: str) -> None:
    """Make a LocalQueue, and its definition where the cluster has none; that stays for other tests.

    Raises ClusterError: also if the definition is not served after half a minute.
    """
    kind = "LocalQueue/v1beta1"
    body = {"apiVersion": f"{_GROUP}/v1beta1", "kind": "LocalQueue", "metadata": {"name": name}}
    give_up = time.monotonic() + _SERVED_SECONDS
    if api.get(_CRD, "", f"localqueues.{_GROUP}") is None:
        _create(api, _CRD, "", _DEFINITION)
    while True:
        try:
            return _create(api, kind, namespace, body)
        except ClusterError as exc:
            if exc.status != 404 or time.monotonic() > give_up:
                raise
        time.sleep(0.2)


def _create(api: ClusterApi, kind: str, namespace: str, body: dict[str, Any]) -> None:
    """It may be there already: another test has made it."""
    try:
        api.create(kind, namespace, body)
    except ClusterError as exc:
        if exc.status != 409:
            raise

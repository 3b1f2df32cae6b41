"""A queue of Kueue that admits nothing, for a test cluster without Kueue: its jobs stay suspended."""

from __future__ import annotations

from typing import Any

from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.errors import ClusterError
from kinetic_core.retry import patiently

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
    if api.get(_CRD, "", f"localqueues.{_GROUP}") is None:
        api.create_or_read(_CRD, "", _DEFINITION)  # another test may have made it

    def is_unserved(error: BaseException) -> bool:
        return isinstance(error, ClusterError) and error.status == 404

    patiently(lambda: api.create_or_read(kind, namespace, body), _SERVED_SECONDS, again=is_unserved)

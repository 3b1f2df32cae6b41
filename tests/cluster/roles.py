"""Roles that a test gives to somebody, first of all the one of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from kinetic_core.backends.kubernetes.client import ClusterApi

USER = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io"}
SERVICE_ACCOUNT = {"kind": "ServiceAccount"}


@contextmanager
def documented_role(api: ClusterApi, namespace: str, subject: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The role of docs/guides/clusters.md in a namespace, given to somebody."""
    guide = Path(__file__).parents[2] / "docs" / "guides" / "clusters.md"
    (text,) = re.findall(r"```yaml\n(apiVersion: .*?)```", guide.read_text(), re.DOTALL)
    role: dict[str, Any] = yaml.safe_load(text)
    with given_role(api, namespace, role, subject):
        yield role


@contextmanager
def given_role(
    api: ClusterApi, namespace: str, role: Mapping[str, Any], subject: Mapping[str, str]
) -> Iterator[None]:
    """A role in a namespace, given to somebody."""
    name = role["metadata"]["name"]
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [dict(subject)],
    }
    api.create("Role", namespace, dict(role))
    api.create("RoleBinding", namespace, binding)
    try:
        yield
    finally:
        api.delete("RoleBinding", namespace, name)
        api.delete("Role", namespace, name)

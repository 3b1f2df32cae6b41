"""A kubeconfig for a server of a test."""

from __future__ import annotations

import json
from pathlib import Path


def write_kubeconfig(path: Path, url: str) -> Path:
    """One that leads to a server over plain HTTP; it holds no credentials. Returns `path`."""
    name = "test"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": url}}],
        "users": [{"name": name, "user": {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
    path.write_text(json.dumps(content))
    return path

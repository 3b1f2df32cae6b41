"""What says where a cluster is."""

from __future__ import annotations

NOBODY = "http://127.0.0.1:1"
KUBECONFIG = f"""\
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: "{NOBODY}"}}}}]
users: [{{name: u, user: {{token: t}}}}]
"""
"""Of a cluster of which nobody answers."""

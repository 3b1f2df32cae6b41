"""What `doctor` advises about an error of ours: the message says what is wrong, this what to do."""

from __future__ import annotations

from kinetic_core.errors import (
    CloudError,
    CloudUnreachable,
    ClusterError,
    ClusterUnreachable,
    ConfigurationError,
    ImageError,
    JobError,
    KineticError,
    StoreError,
    StoreFull,
    WaitTimeout,
)

_ELSE = "docs/troubleshooting.md has every error by its name"
_REMEDIES: tuple[tuple[type[KineticError], str], ...] = (
    (
        ConfigurationError,
        "correct the setting it names (see `kinetic config`), or: gcloud auth application-default login",
    ),
    (
        ClusterUnreachable,
        "see whether the cluster runs and this machine gets to it: address, VPN, proxy, authorised networks",
    ),
    (ClusterError, "let this account do it: bind the role of docs/guides/clusters.md to it"),
    (CloudUnreachable, "see whether this machine gets to Google Cloud (proxy, firewall), then try again"),
    (CloudError, "let this account do it, and see that project and zone are right (`kinetic config`)"),
    (StoreFull, "free space, or set KINETIC_LOCAL_STORE"),
    (
        StoreError,
        "see that the store may be written to: roles/storage.objectUser on a bucket, your own directory here",
    ),
    (ImageError, "look at the build's log, or name a ready image in KINETIC_CONTAINER_IMAGE"),
    (WaitTimeout, "kinetic jobs list shows the job, kinetic jobs explain why it takes so long"),
    (JobError, "kinetic jobs list shows the job, kinetic jobs logs and explain what happened to it"),
)


def remedy(error: KineticError) -> str:
    """A sentence, never empty."""
    if isinstance(error, ClusterError) and error.status is not None and error.is_passing:
        return "try again: the API server is there, and busy"
    return next((told for kind, told in _REMEDIES if isinstance(error, kind)), _ELSE)

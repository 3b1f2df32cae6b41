"""`ensure_credentials`, which programs call before their first job."""

from __future__ import annotations

from kinetic_core.connections import default_connections
from kinetic_core.google_cloud import credentials


def ensure_credentials(
    project: str | None = None, zone: str | None = None, cluster: str | None = None
) -> None:
    """Get a token of Google's, so that missing credentials are told before anything is packed.

    The arguments are those of keras-kinetic; a token is not for one cluster. Neither gcloud nor kubectl is
    run, nothing is installed and no kubeconfig changed. Raises ConfigurationError with the command to run.
    """
    place = default_connections().with_arguments(project=project, zone=zone, cluster=cluster)
    credentials(place, place.settings.google_account).token()

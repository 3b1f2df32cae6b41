"""The lines of batches on one cluster: which stored one counts."""

from __future__ import annotations

from kinetic_core.cluster.access import ClusterApi
from kinetic_core.cluster.lines import line_job, line_of
from kinetic_core.cluster.names import LINE_NAME
from kinetic_core.gke.creation import create_object


class Lines:
    """One Job without pods for each batch whose inputs have Jobs of their own."""

    def __init__(self, api: ClusterApi) -> None:
        self._api = api

    def keep(self, namespace: str, group_id: str, line: str, spec_digest: str) -> str:
        """The digest that counts from now on: this one, or an equal submission's that was there.

        Raises JobConflict if there is one for another batch, ConfigurationError or ClusterError.
        """
        job, _ = create_object(self._api, line_job(namespace, group_id, line, spec_digest))
        return line_of(job)

    def find(self, namespace: str, group_id: str) -> str | None:
        """The digest that counts; None if nothing keeps one."""
        job = self._api.get("Job", namespace, LINE_NAME.format(group_id))
        return None if job is None else line_of(job)

    def remove(self, namespace: str, group_id: str) -> None:
        """Nobody goes on with the batch any more. Idempotent."""
        self._api.delete("Job", namespace, LINE_NAME.format(group_id))

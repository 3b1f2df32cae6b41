"""The pods of silent nodes whose lease has run out: nothing goes on there, so another may start.

The runner ends itself when it cannot renew its lease (`kinetic_core._runner.lease`). Seen from here a lease
has run out when it has stayed the same for longer than it lasts, by this machine's clock alone: what renewed
it was sent before the first look, and no clock needs to agree with another.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kinetic_core._runner import wire
from kinetic_core.errors import ClusterError, ObjectNotFound
from kinetic_core.lifecycle.backends import Backend
from kinetic_core.model.job import JobReference

_MARGIN = 1.1
_MARGIN_SECONDS = 5.0
"""Beyond the lease's own time: for a clock that is slower there, and for processes to end."""
_LOG = logging.getLogger(__name__)


@dataclass
class LeaseWatch:
    """What one observer has seen of the leases of attempts on silent nodes."""

    backend: Backend
    clock: Callable[[], float] = time.monotonic
    _seen: dict[tuple[str, int], tuple[bytes, float]] = field(default_factory=dict)
    """By job and attempt: the lease's content, and when it was first seen so."""

    def look(self, reference: JobReference, attempt: int) -> None:
        """Let the attempt's pod go if its lease has run out. An attempt that never took one is left alone."""
        key = reference.job_id, attempt
        now = self.clock()
        try:
            content = self.backend.store.read(wire.lease_object(*key))
        except ObjectNotFound:
            return
        seen, since = self._seen.setdefault(key, (content, now))
        if seen != content:
            self._seen[key] = content, now
        elif now - since > json.loads(content)["seconds"] * _MARGIN + _MARGIN_SECONDS:
            self._let_go(reference, attempt)

    def _let_go(self, reference: JobReference, attempt: int) -> None:
        try:
            self.backend.let_go(reference.namespace, reference.job_id, attempt)
        except ClusterError as exc:
            if exc.status != 403:
                raise
            _LOG.warning(
                "%s: the lease of attempt %d has run out, and this account may not replace its pod: its role "
                "needs 'delete' on pods and 'patch' on pods/status (docs/guides/clusters.md)",
                reference.job_id,
                attempt,
            )

"""A lease on the job: an attempt that cannot renew it in the store ends itself, wherever it is.

Kubernetes replaces no pod of a node that has stopped reporting: the pod may go on there. With a lease an
observer may, once the lease has not been renewed for longer than it lasts, because then nothing goes on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

from . import wire
from .job import Job
from .store import Store, StoreUnavailable

_RENEWALS = 4
"""In the time that a lease lasts."""


def _now() -> float:
    """Seconds that pass while the machine sleeps, too, where the system can say."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Lease:
    """An attempt's lease. `store` must be one of its own, for the thread that renews it.

    Taken when made, before there is user code: raises StoreUnavailable, and nothing runs without one.
    """

    def __init__(self, job: Job, store: Store) -> None:
        assert job.lease is not None  # noqa: S101  who has none makes none
        self._seconds, self._store = job.lease, store
        self._name = wire.lease_object(job.job_id, job.attempt)
        self._over = threading.Event()
        self._count = 0
        self._until = 0.0
        self._renew()

    def keep(self, child: int) -> None:
        """Renew it from a thread; from another, kill `child` and this process when that has failed."""
        threading.Thread(target=self._keep, daemon=True).start()
        threading.Thread(target=self._guard, args=(child,), daemon=True).start()

    def close(self) -> None:
        """User code has ended."""
        self._over.set()

    def _renew(self) -> None:
        asked = _now()
        content = {"seconds": self._seconds, "renewed": self._count}
        self._store.replace(self._name, json.dumps(content).encode())
        self._count, self._until = self._count + 1, asked + self._seconds

    def _keep(self) -> None:
        while not self._over.wait(self._seconds / _RENEWALS):
            try:
                self._renew()
            except StoreUnavailable as exc:
                sys.stderr.write(f"kinetic: the lease is not renewed: {exc}\n")

    def _guard(self, child: int) -> None:
        while not self._over.wait(max(0.0, self._until - _now())):
            if _now() >= self._until:
                os.kill(child, signal.SIGKILL)
                sys.stderr.write("kinetic: the lease has run out; another attempt may start\n")
                os._exit(wire.EXIT_INTERRUPTED)

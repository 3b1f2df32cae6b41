"""Lease on the job: an attempt that cannot renew it in the store ends itself, wherever it is.

Kubernetes replaces no pod of a node that has stopped reporting: the pod may go on there. With a lease an
observer may, once the lease has not been renewed for longer than it lasts, because then nothing goes on.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from . import object_names, wire
from .attempt import Job
from .notes import encode_note
from .processes import below
from .store import Store

_RENEWALS = 4
"""Renewals in the time that a lease lasts."""
_MOST_ASKING = 16
"""Renewals that may be under way together; each ends with its store's patience."""


def _now() -> float:
    """Return seconds that include the machine's sleep, where the system can tell."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Lease:
    """Lease of an attempt. `opener` opens stores of its own, one for each request that is under way.

    The lease is taken when made, before there is user code: raises StoreUnavailable if it cannot be.
    """

    def __init__(self, job: Job, opener: Callable[[], Store]) -> None:
        assert job.lease is not None  # noqa: S101  who has none makes none
        self._seconds, self._opener, self._job = job.lease, opener, job
        self._name = object_names.lease(job.job_id, job.attempt)
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._idle: list[Store] = []
        self._asking = 0
        self._count = 0
        self._until = 0.0
        self._renew()

    def keep(self, child: int) -> None:
        """Renew the lease in a thread; in another, kill `child` and this process when renewal has failed."""
        threading.Thread(target=self._keep, daemon=True).start()
        threading.Thread(target=self._guard, args=(child,), daemon=True).start()

    def close(self) -> None:
        """Stop renewing, because user code has ended."""
        self._over.set()

    def _renew(self) -> None:
        with self._lock:
            store = self._idle.pop() if self._idle else None
            told = {"renewed": self._count, "pod": self._job.pod_uid}
            self._count += 1
        store, asked = store or self._opener(), _now()
        store.replace(self._name, encode_note(self._job.outcome_key, self._name, told))
        with self._lock:
            self._until = max(self._until, asked + self._seconds)
            self._idle.append(store)

    def _keep(self) -> None:
        """Begin a renewal at every turn, even while an earlier request hangs, which may take minutes."""
        while not self._over.wait(self._seconds / _RENEWALS):
            with self._lock:
                if self._asking == _MOST_ASKING:
                    continue
                self._asking += 1
            threading.Thread(target=self._try_to_renew, daemon=True).start()

    def _try_to_renew(self) -> None:
        try:
            self._renew()
        except Exception as exc:  # noqa: BLE001  whatever it is, the next renewal may succeed
            sys.stderr.write(f"kinetic: the lease is not renewed: {exc}\n")
        finally:
            with self._lock:
                self._asking -= 1

    def _guard(self, child: int) -> None:
        while not self._over.wait(max(0.0, self._until - _now())):
            if _now() >= self._until:
                sys.stderr.write("kinetic: the lease has run out; another attempt may start\n")
                found = below(os.getpid(), is_local=self._job.backend == "local")
                others = [pid for pid in found if pid != child]
                for pid in [*others, child]:  # the child last: the main thread waits for it
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                os._exit(wire.EXIT_INTERRUPTED)

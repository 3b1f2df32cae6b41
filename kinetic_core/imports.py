"""Imports of third-party packages that threads need at the same time.

Two threads that import one package from two ends, such as `requests` and `requests.utils`, wait for each
other. Python notices, and lets one of them go on with a module that is loaded in part: an ImportError, or an
AttributeError later. `kubernetes` and google-auth have such ends.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType


class Importing:
    """Context in which one thread of the process is at a time. A forked child has a lock of its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def begin_anew(self) -> None:
        """Forget who holds the lock: in a forked child, nobody does."""
        self._lock = threading.RLock()


importing = Importing()
"""Around the imports of such packages in functions."""
os.register_at_fork(after_in_child=importing.begin_anew)

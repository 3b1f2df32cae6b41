"""How a batch fails: with everything that is known of every input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kinetic_core.errors import KineticError

if TYPE_CHECKING:
    from kinetic_core.lifecycle.handle import JobHandle


class BatchError(KineticError):
    """Some inputs of a batch have no value.

    `failures` holds the handles of failed jobs, `partial_results` a list with None at failed positions,
    `submission_failures` and `exceptions` map an input's index to what was raised for it: when it was
    submitted, and by its job.
    """

    def __init__(
        self,
        group_id: str,
        failures: Sequence[JobHandle],
        partial_results: Sequence[Any],
        submission_failures: Mapping[int, Exception] | None = None,
        exceptions: Mapping[int, BaseException] | None = None,
    ) -> None:
        self.group_id = group_id
        self.failures = list(failures)
        self.partial_results = list(partial_results)
        self.submission_failures = dict(submission_failures or {})
        self.exceptions = dict(exceptions or {})
        failed = len(self.failures) + len(self.submission_failures)
        shown = sorted({**self.submission_failures, **self.exceptions}.items())[:5]
        lines = [f"{failed} of {len(self.partial_results)} inputs of {group_id} failed"]
        lines += [f"  [{index}] {type(error).__name__}: {error}" for index, error in shown]
        if failed > len(shown) > 0:
            lines.append(f"  and {failed - len(shown)} more; see .exceptions")
        super().__init__("\n".join(lines))
        for index, error in shown[:1]:
            for note in getattr(error, "__notes__", ()):
                self.add_note(f"[{index}] {note}")

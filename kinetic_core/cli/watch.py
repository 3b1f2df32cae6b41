"""`kinetic jobs watch`: jobs as they go, live on a terminal, a line for each change in a pipe."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self

import typer

from kinetic_core._runner.log import printable
from kinetic_core.cli.exit_codes import Exit
from kinetic_core.cli.jobs import attached, job_ids, submitted_at, summaries_of
from kinetic_core.cli.output import Output
from kinetic_core.cli.parallel import side_by_side
from kinetic_core.cli.root import jobs_app
from kinetic_core.cli.verb import Session, verb
from kinetic_core.errors import KineticError
from kinetic_core.job import JobObservation, JobStatus
from kinetic_core.jobs import observe
from kinetic_core.jobs.fallback import remedy
from kinetic_core.jobs.handle import JobHandle, followed_log
from kinetic_core.jobs.watch import Subscription

if TYPE_CHECKING:
    from kinetic_core.job import JobObservation
    from kinetic_core.jobs.handle import JobHandle
    from kinetic_core.jobs.listing import JobSummary

_READERS = 16


@verb(
    jobs_app,
    "watch",
    examples=[
        "kinetic jobs watch",
        "kinetic jobs watch job-0123456789abcdef",
        "kinetic jobs watch --json | jq",
    ],
)
def watch(
    session: Session,
    asked: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB]...", help="default: all that have not ended", autocompletion=job_ids),
    ] = None,
) -> int | None:
    """Watch jobs until they have ended; exit code 1 if one ended without a value.

    On a terminal: a table with the reason of waiting and the log of one job. Keys: up and down choose a job,
    c cancels it, e explains where its time went, q leaves (the jobs go on).
    """

    handles = _handles(session, asked or [])
    listed = {job.job_id: job for job in summaries_of(session)} if session.output.as_json else {}
    if not handles:
        session.output.line("no job is waiting or running")
    with Watched(handles) as watched:
        if session.output.is_terminal and not session.output.as_json and handles:
            from kinetic_core.cli.screen import show

            show(watched, session.output.stream)
        else:
            follow(session.output, watched)
    if session.output.as_json:
        jobs = [
            {**_fields(handle, seen), **_asked_by(listed.get(handle.job_id))}
            for handle, seen in watched.states()
        ]
        session.output.json("jobs.watch", {"jobs": jobs})
    return Exit.JOB_FAILED if watched.has_failures() else None


def _handles(session: Session, asked: list[str]) -> list[JobHandle]:
    """Those asked for, else all that have not ended."""
    if not asked:
        known = summaries_of(session)
        alone = [job for job in known if not job.problem and not job.inputs]
        asked = [job.job_id for job in alone if not job.status.is_terminal]
    return side_by_side(lambda job_id: attached(session, job_id), asked, _READERS)


def follow(output: Output, watched: Watched) -> None:
    """A line for each change, until all have ended, and once what gives jobs that wait for a node one."""
    hints = {""}
    for handle, seen in watched.changes():
        said = f" {seen.reason}: {seen.message}" if seen.reason else ""
        output.line(f"{handle.job_id} {seen.status.value}{said}")
        hint = "" if output.as_json else remedy(handle.place, handle, seen)
        if hint not in hints:
            output.line(f"hint: {hint}")
            hints.add(hint)


def _asked_by(job: JobSummary | None) -> dict[str, object]:
    return {"origin": dict(job.origin) if job else {}, "user": job.user if job else ""}


def _fields(handle: JobHandle, seen: JobObservation | None) -> dict[str, object]:
    names = ("job_id", "backend", "func_name", "accelerator", "namespace")
    facts: dict[str, object] = {name: getattr(handle, name) for name in names}
    status = seen.status.value if seen else ""
    waits = seen.reason if seen and not seen.is_terminal else ""
    return {
        **facts,
        "created_at": submitted_at(handle),
        "group_id": handle.group_id or "",
        "status": status,
        "reason": waits,
        "problem": "",
        "finished_at": seen.finished_at if seen else None,
        **dict.fromkeys(("inputs", "succeeded", "failed"), 0),
    }


_WAKE_SECONDS = 0.5
_LINES = 1000


class Watched:
    """Jobs under observation, from entering the context to leaving it."""

    def __init__(self, handles: Sequence[JobHandle]) -> None:
        self.handles = list(handles)
        self._seen: dict[str, JobObservation] = {}
        self._news: queue.Queue[tuple[JobHandle, JobObservation]] = queue.Queue()
        self._subscriptions: list[Subscription] = []

    def __enter__(self) -> Self:
        for handle in self.handles:
            self._subscriptions.append(observe.watch(handle.place, handle, self._callback(handle)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for subscription in self._subscriptions:
            subscription.close()

    def states(self) -> list[tuple[JobHandle, JobObservation | None]]:
        """Every job with what is known of it; None until it has been looked at."""
        return [(handle, self._seen.get(handle.job_id)) for handle in self.handles]

    def is_over(self) -> bool:
        """Whether all have ended."""
        return all(seen is not None and seen.is_terminal for _, seen in self.states())

    def has_failures(self) -> bool:
        """Whether one has ended without a value."""
        ended = [seen for _, seen in self.states() if seen is not None and seen.is_terminal]
        return any(seen.status is not JobStatus.SUCCEEDED for seen in ended)

    def changes(self) -> Iterator[tuple[JobHandle, JobObservation]]:
        """Every change, until all have ended."""
        while not (self.is_over() and self._news.empty()):
            try:
                # With a limit, so that Ctrl-C is heard on every system.
                yield self._news.get(timeout=_WAKE_SECONDS)
            except queue.Empty:
                continue

    def _callback(self, handle: JobHandle) -> Callable[[JobObservation], None]:
        def notice(seen: JobObservation) -> None:
            self._seen[handle.job_id] = seen
            self._news.put((handle, seen))

        return notice


class LogTail:
    """The last lines a job printed, kept up to date by a thread until `stop()`."""

    def __init__(self, handle: JobHandle) -> None:
        self.handle = handle
        self._stopped = threading.Event()
        self._lines: deque[str] = deque([""], maxlen=_LINES)
        threading.Thread(target=self._run, name=f"kinetic-tail-{handle.job_id}", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def last(self, count: int) -> list[str]:
        """The last lines, safe to show. Of a line that was overwritten by `\\r`, what it last said."""
        lines = [line.rstrip("\r").rpartition("\r")[2] for line in list(self._lines)]
        while lines and not lines[-1]:
            lines.pop()
        return [printable(line).expandtabs() for line in lines[-count:]] if count > 0 else []

    def _run(self) -> None:
        try:
            for text in followed_log(self.handle.place, self.handle, self._stopped.is_set):
                self._add(text)
            if not any(self._lines):
                self._add(self.handle.logs() or "")
        except KineticError as exc:
            self._add(f"\nthe log cannot be read: {exc}")

    def _add(self, text: str) -> None:
        first, *others = text.split("\n")
        self._lines[-1] += first
        self._lines.extend(others)

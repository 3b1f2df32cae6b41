"""One thing done to several jobs: what goes wrong with one of them keeps none of the others waiting."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TypeVar

from kinetic_core.cli.exit_codes import Exit, exit_code
from kinetic_core.cli.verb import Session, complain
from kinetic_core.errors import KineticError

T = TypeVar("T")


def do_each(session: Session, schema: str, job_ids: Iterable[str], act: Callable[[str], str]) -> int | None:
    """Do it to each job and tell what `act` says of it; the exit code.

    Raises as `raise_if_all`: a job that is named alone fails as it does anywhere.
    """
    wanted = list(dict.fromkeys(job_ids))
    done: list[str] = []
    problems: dict[str, KineticError] = {}
    for job_id in wanted:
        try:
            told = act(job_id)
        except KineticError as exc:
            problems[job_id] = exc
        else:
            done.append(job_id)
            session.output.line(told)
    raise_if_all(problems, len(wanted))
    if session.output.as_json:
        told_problems = {job_id: str(error) for job_id, error in problems.items()}
        session.output.json(schema, {"job_ids": done, "problems": told_problems})
    return tell(session, problems)


def raise_if_all(problems: Mapping[T, KineticError], asked: int) -> None:
    """Where nothing at all was done the verb has failed: the first error, with the others as its notes."""
    if not problems or len(problems) < asked:
        return
    first, *others = problems.values()
    for other in others:
        first.add_note(f"error: {other}")
    raise first


def tell(session: Session, problems: Mapping[T, KineticError]) -> Exit | None:
    """Say to people what went wrong with some; the exit code of the first, None if nothing did."""
    for error in problems.values() if not session.output.as_json else ():
        complain(error)
    return next((exit_code(error) for error in problems.values()), None)


R = TypeVar("R")


def side_by_side(function: Callable[[T], R], things: Iterable[T], at_once: int) -> list[R]:
    """`function` of each, in their order, in so many threads; raises what it raised of the first that failed.

    An executor waits for its threads, whatever happens: Ctrl-C would end nothing before a silent service has
    answered.
    """
    asked: list[tuple[T, Future[R]]] = [(thing, Future()) for thing in things]
    left = deque(asked)

    def work() -> None:
        while left:
            try:
                thing, future = left.popleft()
            except IndexError:
                return  # another thread was quicker
            try:
                future.set_result(function(thing))
            except BaseException as exc:  # noqa: BLE001  raised where it is waited for
                future.set_exception(exc)

    for _ in asked[:at_once]:
        threading.Thread(target=work, daemon=True).start()
    return [future.result() for _, future in asked]

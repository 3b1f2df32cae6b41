"""`kinetic shell`: a terminal where a job runs, or where one would run."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinetic_core.cli.completion import accelerator_names
from kinetic_core.cli.exit_codes import Exit
from kinetic_core.cli.functions import arguments
from kinetic_core.cli.jobs import attached, job_ids
from kinetic_core.cli.root import app
from kinetic_core.cli.verb import Session, complain, fail, verb
from kinetic_core.errors import InvalidRequest, KineticError

if TYPE_CHECKING:
    from kinetic_core.jobs.handle import JobHandle
    from kinetic_core.options import RunOptions

_ID = "job-0123456789abcdef"
_ENDING_SECONDS = 60.0


@verb(
    app,
    "shell",
    examples=[
        f"kinetic shell {_ID}",
        f"kinetic shell {_ID} --host 3 -- nvidia-smi",
        "kinetic shell --accelerator tpu-v6e-8",
        "kinetic shell -a tpu-v6e-8 -o memory=64Gi -- python train.py < input > output",
    ],
)
def shell(
    session: Session,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB] [-- COMMAND...]",
            help="id of a job that runs, unless --accelerator is given; a command instead of a shell",
            autocompletion=job_ids,
        ),
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(
            "--accelerator",
            "-a",
            help="start a pod on this hardware, for this shell alone",
            autocompletion=accelerator_names,
        ),
    ] = None,
    host: Annotated[int, typer.Option(min=0, help="which host of the job's slice")] = 0,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", metavar="NAME=VALUE", help="an option of run for --accelerator; may be repeated"
        ),
    ] = None,
) -> int:
    """Open a terminal in a job's pod, or with --accelerator in a pod of its own, which ends with the shell.

    The shell has the working directory, the environment and the packages that the job's function has; with
    --accelerator, those that a function of this directory would have. Its exit code is that of the shell, or
    of COMMAND. Where stdin or stdout is no terminal, there is none in the pod either.
    """
    from kinetic_core.jobs.shell import ShellLost

    if session.output.as_json:
        raise InvalidRequest("--json: a shell has the output for itself; its exit code says how it ended")
    try:
        if accelerator is None:
            return _in_job(session, words or [], host, options or [])
        return _in_own_pod(session, words or [], accelerator, host, options or [])
    except ShellLost as exc:
        return fail(session.output, exc, Exit.SHELL_LOST)


def _in_job(session: Session, words: list[str], host: int, options: list[str]) -> int:
    from kinetic_core.jobs.shell import open_shell

    if not words:
        raise InvalidRequest("name a job that runs, or say where to start a pod: --accelerator cpu")
    if options:
        raise InvalidRequest("--option is for a pod that is started: give --accelerator, and no job")
    handle = attached(session, words[0])
    return open_shell(handle.place, handle, words[1:], host)


def _in_own_pod(session: Session, words: list[str], accelerator: str, host: int, options: list[str]) -> int:
    from kinetic_core.backends.base import backend_name, open_backend
    from kinetic_core.decorator import RemoteCallable
    from kinetic_core.jobs.console import Console, exits_when_told
    from kinetic_core.jobs.shell import IDLE_SECONDS, open_first_shell, shell_function
    from kinetic_core.terminal import Progress

    checked = _options(session, accelerator, options)
    if host or checked.accelerator.hosts > 1:
        raise InvalidRequest(
            "--accelerator with several hosts: start a job on the slice, and open a shell on each host with "
            "kinetic shell JOB --host N"
        )
    connections = session.connections.with_settings(checked.settings(session.settings))
    name = backend_name(checked.backend, 1, connections)
    open_backend(name, connections).shells.check(connections.settings.namespace)
    function = RemoteCallable(shell_function(), checked, session.connections)
    with exits_when_told():  # from before the job exists: once its id is said, it ends with this process
        handle = function.run_async(IDLE_SECONDS)
        try:
            with ExitStack() as shown:
                progress = shown.enter_context(Progress())
                progress.begin("waiting")
                code = open_first_shell(handle, words, progress.observe, Console(shown.close))
        except (KeyboardInterrupt, SystemExit, KineticError):
            _cancel(handle)
            raise
    _collect(handle)
    return code


def _options(session: Session, accelerator: str, words: list[str]) -> RunOptions:
    """Return the options of the job: those of the flags, checked as those of `run` are."""
    from kinetic_core.options import RunOptions

    values, named = arguments(words)
    if values:
        raise InvalidRequest(f"--option {values[0]}: write NAME=VALUE, such as memory=16Gi")
    places = {name: value for name, value in session.flags.items() if name != "profile"}
    options: dict[str, Any] = {"infrastructure_retries": 0, **named, **places}
    try:
        checked = RunOptions.checked(accelerator, **options)
    except TypeError as exc:
        raise InvalidRequest(str(exc)) from exc
    if checked.debug:
        raise InvalidRequest("--option debug: a shell waits for no debugger")
    return checked


def _cancel(handle: JobHandle) -> None:
    """End a job whose shell is no more; should that fail, it ends by itself."""
    try:
        if not handle.status().is_terminal:
            handle.cancel()
    except KineticError as exc:
        _warn(handle, exc)


def _collect(handle: JobHandle) -> None:
    """Wait for the end of a job whose shell has ended, and remove what is left of it."""
    try:
        handle.result(_ENDING_SECONDS)
    except KineticError as exc:
        _warn(handle, exc)


def _warn(handle: JobHandle, exc: KineticError) -> None:
    complain(exc)
    sys.stderr.write(f"{handle.job_id} ends by itself within minutes: kinetic jobs status {handle.job_id}\n")

"""`kinetic run`: a function in a file, as a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kinetic_core.cli.completion import accelerator_names
from kinetic_core.cli.functions import arguments, load
from kinetic_core.cli.outcomes import collected, show_value, value_fields
from kinetic_core.cli.root import app
from kinetic_core.cli.verb import Session, verb
from kinetic_core.errors import InvalidRequest
from kinetic_core.jobs.debug import debug_door

if TYPE_CHECKING:
    from kinetic_core.decorator import RemoteCallable
    from kinetic_core.jobs.handle import JobHandle
    from kinetic_core.terminal import Progress

Target = Annotated[str, typer.Argument(metavar="FILE[:FUNCTION]", help="a Python file, and a function in it")]
Accelerator = Annotated[
    str | None,
    typer.Option(
        "--accelerator", "-a", help="hardware, instead of what @run says", autocompletion=accelerator_names
    ),
]
Warm = Annotated[
    str | None,
    typer.Option(
        "--warm",
        metavar="TIME",
        help="keep the pod for further calls, such as 10m, instead of what @run says",
    ),
]


@verb(
    app,
    "run",
    examples=[
        "kinetic run train.py:train 10 rate=0.1",
        "kinetic run plain.py:work --accelerator tpu-v5e-4",
        "kinetic run train.py:train --warm 10m",
        "kinetic run train.py --detach",
    ],
)
def run(
    session: Session,
    target: Target,
    values: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VALUE|NAME=VALUE]...", help="arguments, as Python literals or texts"),
    ] = None,
    accelerator: Accelerator = None,
    warm: Warm = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="print the job's id and stop")] = False,
) -> int | None:
    """Run a function as a job: print its log as it comes, then its value. What it raises is exit code 1.

    Meanwhile stderr shows what it does or waits for, and why.
    """
    from kinetic_core.terminal import Progress

    function = load(target, session, accelerator, warm)
    if detach:
        with Progress() as progress:
            handle = _started(function, target, values or [], progress)
        if session.output.as_json:
            session.output.json("run", {"job_id": handle.job_id, "result": None})
        session.output.line(handle.job_id)
        return None
    with (
        Progress(retries=function.options.retries) as progress,
        debug_door(function.function, function.options, session.connections, progress.observe) as door,
    ):
        handle = _started(function, target, values or [], progress)
        streams = not session.output.as_json
        try:
            with door(handle):
                ending = collected(lambda: handle.shown_result(progress, stream_logs=streams))
        except KeyboardInterrupt:
            progress.leave(handle)
            raise
    if ending.error is not None:
        return ending.told(session.output)
    if session.output.as_json:
        session.output.json("run", {"job_id": handle.job_id, "result": value_fields(ending.value)["result"]})
    else:
        show_value(session.output, ending.value)
    return None


def _started(
    function: RemoteCallable[..., Any], target: str, values: list[str], progress: Progress
) -> JobHandle:
    args, kwargs = arguments(values)
    try:
        return function.start(tuple(args), kwargs, progress)
    except TypeError as exc:  # the arguments do not fit
        raise InvalidRequest(f"{target}: {exc}") from exc

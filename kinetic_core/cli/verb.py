"""How a function becomes a verb: common options, what is printed, how it ends.

    @verb(app, "status", examples=["kinetic jobs status job-0123456789abcdef"])
    def status(session: Session, job_id: JobId) -> None: ...

A verb takes a `Session` first, then what typer makes options and arguments of. It returns an exit code, or
None for success, and may raise any error of ours.
"""

from __future__ import annotations

import errno
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from kinetic_core._runner.log import printable
from kinetic_core.cli.completion import COMPLETIONS
from kinetic_core.cli.exit_codes import Exit, exit_code
from kinetic_core.cli.output import Output
from kinetic_core.errors import KineticError
from kinetic_core.options import OPTIONS
from kinetic_core.settings import Settings, read_settings, set_up_logging

if TYPE_CHECKING:
    from kinetic_core.connections import Connections

Verb = Callable[..., "int | None"]


@dataclass(frozen=True)
class Session:
    """One call of the command. `flags` are the common options given, by the setting they replace."""

    output: Output
    flags: dict[str, str]

    @cached_property
    def connections(self) -> Connections:
        """Those of the one client of this call, with the settings that flags, environment and profile say."""
        from kinetic_core.connections import Connections

        return Connections(read_settings(stated=self.flags, by=FLAG_OF))

    def close(self) -> None:
        """Close what the call has opened: a program that calls the command goes on without its threads."""
        if "connections" in self.__dict__:
            self.connections.close()

    @property
    def settings(self) -> Settings:
        """The settings that flags, environment and profile say."""
        return self.connections.settings

    @property
    def backend(self) -> str | None:
        """`--backend`, None if it was not given."""
        return self.flags.get("backend")


_FLAGS = {
    name: (f"--{name}", f"KINETIC_{name.upper()}", words)
    for name, words in {
        "profile": "a profile instead of the current one",
        **{name: row.flag for name, row in OPTIONS.rows.items() if row.flag},
    }.items()
}
FLAG_OF = {name: flag for name, (flag, _, _) in _FLAGS.items()}
"""The flag that replaces a setting."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What writing to a file that is stdout fails with; such an error names no file."""


def parsed(command: Any, parse: Callable[[], list[str]]) -> list[str]:
    """Parse the words of a call; an error names first the options that begin with what was typed."""
    try:
        return parse()
    except Exception as exc:
        if begun := getattr(exc, "option_name", None):
            shown = [one for one in command.params if not getattr(one, "hidden", False)]
            names = [name for one in shown for name in (*one.opts, *one.secondary_opts)]
            if meant := [name for name in names if name.startswith(begun)]:
                vars(exc)["possibilities"] = meant
        raise


class _Command(TyperCommand):
    """Verb that suggests the options of which a word that is no option is the beginning."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of a call."""
        return parsed(self, lambda: super(_Command, self).parse_args(ctx, args))


def verb(
    app: typer.Typer, name: str, examples: Sequence[str] = (), *, hidden: bool = False
) -> Callable[[Verb], Verb]:
    """Register a function as a verb of `app`; a `hidden` one, such as another name, is in no help."""

    def register(function: Verb) -> Verb:
        signature = inspect.signature(function, eval_str=True)
        _, *own = signature.parameters.values()

        def entry(**values: Any) -> None:
            raise SystemExit(_perform(function, values))

        common = _common_parameters()
        entry.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*own, *common], return_annotation=None
        )
        entry.__annotations__ = {each.name: each.annotation for each in (*own, *common)}
        epilog = "\b\nExamples:\n" + "\n".join(f"  {example}" for example in examples) if examples else None
        told = inspect.getdoc(function) or ""
        summary = told.partition("\n\n")[0]  # in lists of verbs, which would cut it
        app.command(name, cls=_Command, help=told, short_help=summary, epilog=epilog, hidden=hidden)(entry)
        return function

    return register


def _common_parameters() -> list[inspect.Parameter]:
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(
            name,
            keyword,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Option(flag, help=f"{text}; as {variable}", autocompletion=COMPLETIONS.get(name)),
            ],
        )
        for name, (flag, variable, text) in _FLAGS.items()
    ]
    as_json = Annotated[bool, typer.Option("--json", help="one JSON object, docs/reference/cli-json.md")]
    context = inspect.Parameter("context", keyword, annotation=typer.Context)
    return [context, *parameters, inspect.Parameter("as_json", keyword, default=False, annotation=as_json)]


def _perform(function: Verb, values: dict[str, Any]) -> int:
    """Call a verb; its exit code, whatever happens in it."""
    output = Output(values.pop("as_json"))
    before: dict[str, str] = values.pop("context").find_root().obj or {}
    flags = before | {name: value for name in _FLAGS if (value := values.pop(name)) is not None}
    try:
        set_up_logging(always=True)
        code = _answer(function, Session(output, flags), values)
        output.flush()
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except typer.Abort:  # what a prompt makes of Ctrl-C and Ctrl-D, on a line that nobody has ended
        sys.stderr.write("\n")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return Exit.CLOSED_PIPE
    except Exception as exc:  # noqa: BLE001  the program's own mistake: shown whole, with a code of its own
        if isinstance(exc, OSError) and exc.errno in _NO_ROOM and exc.filename is None:
            _drop_output()
            sys.stderr.write(f"error: the output cannot be written: {exc.strerror}\n")
            return Exit.FULL_OUTPUT
        sys.stderr.write(traceback.format_exc())
        return Exit.INTERNAL
    return Exit.OK if code is None else code


def _answer(function: Verb, session: Session, values: dict[str, Any]) -> int | None:
    try:
        return function(session, **values)
    except KineticError as exc:
        return fail(session.output, exc, exit_code(exc))
    finally:
        session.close()


def _drop_output() -> None:
    """Python flushes stdout once more at exit; there is nobody to tell that it fails."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(output: Output, error: BaseException, code: Exit) -> Exit:
    """Say what went wrong: to people on stderr, to programs as an object on stdout."""
    notes = list(getattr(error, "__notes__", ()))
    if output.as_json:
        kind = type(error).__name__
        output.json("error", {"error": kind, "message": str(error), "notes": notes, "exit_code": int(code)})
        return code
    complain(error)
    return code


def complain(error: BaseException) -> None:
    """An error for people, on stderr."""
    said = f"error: {error}" if isinstance(error, KineticError) else f"{type(error).__name__}: {error}"
    lines = [said, *getattr(error, "__notes__", ())]
    if isinstance(error, KineticError) and error.hint:
        lines.append(f"hint: {error.hint}")
    sys.stderr.write(printable("\n".join(lines)) + "\n")

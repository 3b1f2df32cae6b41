"""The root of the command and its groups; the modules of verbs hang themselves in here."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import kinetic_core
from kinetic_core.cli.verb import parsed


class _Group(TyperGroup):
    """Group of verbs that suggests options as a verb does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words up to the verb."""
        return parsed(self, lambda: super(_Group, self).parse_args(ctx, args))


def _group(help_text: str) -> typer.Typer:
    return typer.Typer(
        cls=_Group,
        help=help_text,
        short_help=help_text,  # whole in the list of commands, where one without it is cut
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )


app = _group("Run Python functions on cloud TPUs and GPUs, and look after the jobs.")
jobs_app = _group("Look at jobs, collect them, end them.")
batch_app = _group("Look at batches: many inputs, one function.")
profile_app = _group("Settings by name, kept in ~/.kinetic/profiles.json.")
pool_app = _group("Node pools of a cluster that kinetic up made.")
namespace_app = _group("Places for jobs in such a cluster.")
warm_app = _group("Look at the workers that run calls of warm functions, start and stop them.")
app.add_typer(jobs_app, name="jobs")
app.add_typer(warm_app, name="warm")
app.add_typer(pool_app, name="pool")
app.add_typer(namespace_app, name="namespace")
app.add_typer(batch_app, name="batch")
app.add_typer(profile_app, name="profile")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"kinetic {kinetic_core.__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    profile: Annotated[
        str | None, typer.Option("--profile", help="a profile instead of the current one")
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version and stop")
    ] = False,
) -> None:
    """Run Python functions on cloud TPUs and GPUs, and look after the jobs."""
    del version  # its callback has done everything
    if profile is not None:
        context.obj = {"profile": profile}  # for the verb that follows, see `verb`

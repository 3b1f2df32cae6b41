"""Every `kinetic ...` on the pages is one that the command understands."""

from __future__ import annotations

import functools
import re
import shlex
from typing import Any

import pytest
import typer.main

from kinetic_core.cli.main import build
from tests.documents.pages import PAGES, ROOT, blocks, words_in_code


def lines_of(text: str) -> list[str]:
    """The commands of a block, continued lines joined."""
    return [line.strip() for line in re.sub(r"\\\n\s*", " ", text).splitlines() if line.strip()]


COMMANDS = sorted(
    {
        (f"{block.page.relative_to(ROOT)}", line)
        for block in blocks("bash")
        for line in lines_of(block.text)
        if line.startswith("kinetic ")
    }
)
MENTIONED = sorted(
    {
        (f"{page.relative_to(ROOT)}", words)
        for page in PAGES
        for words in words_in_code(page)
        if words.startswith("kinetic ") and page.name not in ("cli.md", "cli-json.md")
    }
)


@functools.cache
def whole_command() -> Any:
    """The command with all its verbs."""
    return typer.main.get_command(build())


def parse(line: str) -> None:
    """Raise what the command raises for such a line, without running it."""
    words = shlex.split(line, comments=True)[1:]
    command = whole_command()
    while words and getattr(command, "commands", None) and not words[0].startswith("-"):
        assert words[0] in command.commands, f"there is no {words[0]!r}"
        command = command.commands[words.pop(0)]
    if getattr(command, "commands", None):
        known = {name for option in command.params for name in option.opts}
        assert set(words) <= known
        return
    command.make_context("kinetic", words)


@pytest.mark.promise("command: … shell and data")
@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_is_understood(page: str, line: str) -> None:
    parse(line)


@pytest.mark.parametrize(("page", "words"), MENTIONED)
def test_a_command_in_a_sentence_is_understood(page: str, words: str) -> None:
    try:
        parse(words)
    except Exception as error:  # the parser's own class comes from wherever typer keeps it
        assert type(error).__name__ == "MissingParameter", error  # noqa: PT017


def test_a_command_that_is_not_there_is_noticed() -> None:
    with pytest.raises(AssertionError, match="no 'fly'"):
        parse("kinetic fly")
    with pytest.raises(Exception, match="--wings"):
        parse("kinetic jobs list --wings 2  # an option that is none")


def test_every_make_target_on_the_pages_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target
        for text in [block.text for block in blocks("bash")]
        for line in lines_of(text)
        if line.startswith("make ")
        for target in shlex.split(line, comments=True)[1:]
    }
    assert named
    assert named <= targets

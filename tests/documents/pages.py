"""What README and docs hold: their pages, blocks of code, and words in code."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "AGENTS.md", "skills/kinetic/SKILL.md")),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
_FENCED = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


_FENCE = re.compile(r"^ *(`{3,})(.*)$", re.MULTILINE)


@cache
def parsed(path: Path) -> ast.Module:
    """A source file. Parsing the whole product takes a second, and many tests read it."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(tree: ast.Module) -> Sequence[ast.AST]:
    """All nodes of a module."""
    return tuple(ast.walk(tree))


@dataclass(frozen=True)
class Block:
    """A fenced block: the page it is on, its number there, and its text without the page's indentation."""

    page: Path
    number: int
    text: str

    @property
    def name(self) -> str:
        """As an identifier, `guides_data_0`."""
        place = self.page.relative_to(ROOT).with_suffix("")
        return f"{re.sub(r'[^a-z0-9]+', '_', str(place).removeprefix('docs/').lower())}_{self.number}"


def blocks(language: str) -> list[Block]:
    """All blocks of that language but the files that are included; those have tests of their own."""
    return [
        Block(page, number, textwrap.dedent(text))
        for page in PAGES
        for number, (_, found, text) in enumerate(_FENCED.findall(page.read_text()))
        if found == language and not text.lstrip().startswith("--8<--")
    ]


def languages(text: str) -> list[str]:
    """What the fences of a page name, "" for one that names nothing."""
    found, until = [], ""
    for fence, about in _FENCE.findall(text):
        if not until:
            found.append(about.split()[0] if about.strip() else "")
            until = fence
        elif fence == until and not about.strip():
            until = ""
    return found


def words_in_code(page: Path) -> list[str]:
    """What stands between single backquotes, outside blocks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", _FENCED.sub("", page.read_text()))

"""Links lead somewhere, and what has to be told about is told about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kinetic_core import BatchError, errors
from tests.documents.pages import PAGES, ROOT, languages, words_in_code

DOCS = ROOT / "docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_is_in_a_language_that_is_tested(page: Path) -> None:
    """`text` is what programs print, and diagrams; the reference's is compared with the command."""
    assert set(languages(page.read_text())) <= {"bash", "json", "python", "text", "toml", "yaml"}


def test_a_block_without_a_language_is_noticed() -> None:
    page = "````md\n```\nx\n```\n````\n\n```\ny\n```\n  ```bash title='x'\nz\n  ```\n"
    assert languages(page) == ["md", "", "bash"]


def test_every_error_is_in_troubleshooting() -> None:
    told = set(words_in_code(DOCS / "troubleshooting.md"))
    raised = {each.__name__ for each in vars(errors).values() if isinstance(each, type)} | {
        BatchError.__name__
    }
    assert {name for name in raised if name not in told and f"kinetic_core.{name}" not in told} == set()


def test_every_setting_is_in_the_reference() -> None:
    told = " ".join(words_in_code(DOCS / "reference" / "configuration.md"))
    modules = (ROOT / "kinetic_core" / name for name in ("configuration.py", "profiles.py"))
    read = {
        name
        for module in modules
        for name in re.findall(
            r"\"((?:KINETIC|STORAGE|HF|XDG|GOOGLE|CLOUDSDK)_[A-Z_]+)\"", module.read_text()
        )
    }
    assert len(read) > 15
    assert {name for name in read if name not in told} == set()

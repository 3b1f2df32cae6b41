"""Links lead somewhere, and what has to be told about is told about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kinetic_core
from kinetic_core import BatchError, errors
from tests.documents.pages import PAGES, ROOT, languages, words_in_code

DOCS = ROOT / "docs"


@pytest.mark.promise("command: Docs site built strictly in CI")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.promise("command: … shell and data")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_is_in_a_language_that_is_tested(page: Path) -> None:
    """`text` is what programs print, and diagrams; the reference's is compared with the command."""
    assert set(languages(page.read_text())) <= {"bash", "json", "python", "text", "toml", "yaml"}


def test_a_page_is_called_the_same_everywhere() -> None:
    """In the navigation as at its head; the first page of all has the name of the site there."""
    entries = re.findall(
        r"^ +- ([^\n:\[\]]+): ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE
    )
    titles = {page: re.search(r"^# (.+)$", (DOCS / page).read_text(), re.MULTILINE) for _, page in entries}
    heads = {page: found[1].replace("`", "") if found else "" for page, found in titles.items()}
    assert len(entries) > 40
    assert [(name, heads[page]) for name, page in entries if name != heads[page]] == []


def test_a_block_without_a_language_is_noticed() -> None:
    page = "````md\n```\nx\n```\n````\n\n```\ny\n```\n  ```bash title='x'\nz\n  ```\n"
    assert languages(page) == ["md", "", "bash"]


FROM_THE_INDEX = re.compile(
    r"\b(?:pip3?|pipx|uvx?|poetry|pdm)\b[^\n]*\b(?:install|add)\b[^\n]*\bairflow[-_]provider[-_]kinetic(?![-\w.]*\.whl)"
)
"""A line that takes the package from an index, where it is not published."""


def test_no_document_installs_what_is_not_published() -> None:
    shown = [*PAGES, *(ROOT / "examples").rglob("*.*"), *(ROOT / "example_dags").rglob("*.py")]
    texts = {file: file.read_text(errors="replace") for file in shown if file.suffix != ".pyc"}
    assert {file: found[0] for file, text in texts.items() if (found := FROM_THE_INDEX.search(text))} == {}


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("pip install airflow-provider-kinetic", True),
        ('uv pip install -U "airflow_provider_kinetic[cli]==0.1.0"', True),
        ("uv add airflow-provider-kinetic", True),
        ("pip install dist/airflow_provider_kinetic-0.1.0-py3-none-any.whl", False),
        ("pip install '.[cli]'", False),
    ],
)
def test_what_takes_the_package_from_an_index(line: str, is_refused: bool) -> None:
    assert bool(FROM_THE_INDEX.search(line)) is is_refused


BRIEF = {
    "getting_started": "getting-started.md",
    "guides/execution_modes": "guides/images.md",
    "troubleshooting": "troubleshooting.md",
    "guides/faq": "guides/faq.md",
    "guides/data": "guides/data.md",
    "guides/checkpointing": "guides/checkpoints.md",
    "guides/dependencies": "guides/dependencies.md",
    "guides/env_vars": "guides/variables.md",
    "guides/profiles": "guides/profiles.md",
    "guides/debugging": "guides/debugging.md",
    "guides/cost_optimization": "guides/costs.md",
    "guides/distributed_training": "guides/multi-host.md",
    "guides/containers": "guides/images.md",
    "guides/advanced": "guides/detached-jobs.md",
    "guides/profiling": "guides/profiling.md",
    "examples/vllm": "guides/vllm.md",
    "examples/keras_training": "examples/keras-training.md",
    "examples/jax_training": "examples/jax-training.md",
    "examples/pytorch_training": "examples/pytorch-training.md",
    "examples/gemma4_finetuning": "examples/gemma-finetuning.md",
    "examples/llm_finetuning": "examples/llm-finetuning.md",
    "examples": "examples/README.md",
    "api": "reference/api.md",
    "cli": "reference/cli.md",
    "accelerators": "reference/accelerators.md",
    "configuration": "reference/configuration.md",
    "architecture": "architecture.md",
    "contributing": "contributing.md",
    "code-of-conduct": "code-of-conduct.md",
}
"""What keras-kinetic's contents name, and what of ours its reader is sent to."""
ENOUGH = 150
"""Words, below which a page that is no reference would be a stub."""


@pytest.mark.promise("command: Every page that the brief's contents name")
def test_every_page_of_keras_kinetic_has_a_counterpart() -> None:
    on_the_site = set(re.findall(r"\S+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert set(BRIEF.values()) - on_the_site == set()
    thin = {page for page in BRIEF.values() if len(full_text(DOCS / page).split()) < ENOUGH}
    assert thin <= {"reference/api.md"}  # which mkdocstrings fills


def full_text(page: Path) -> str:
    """The page with the files that it includes."""
    included = re.compile(r'^--8<-- "(.*)"$', re.MULTILINE)
    return included.sub(lambda found: (ROOT / found[1]).read_text(), page.read_text())


@pytest.mark.promise("command: Troubleshooting by symptom")
def test_every_error_is_in_troubleshooting() -> None:
    told = set(words_in_code(DOCS / "troubleshooting.md"))
    raised = {each.__name__ for each in vars(errors).values() if isinstance(each, type)} | {
        BatchError.__name__
    }
    assert {name for name in raised if name not in told and f"kinetic_core.{name}" not in told} == set()


@pytest.mark.promise("command: API and CLI reference generated from the code")
def test_every_public_name_is_in_the_reference() -> None:
    there = re.findall(r"^::: \S+\.(\w+)$", (DOCS / "reference" / "api.md").read_text(), re.MULTILINE)
    known = {*there, *vars(errors)} if "errors" in there else set(there)
    assert set(kinetic_core.__all__) - known == {"__version__"}


def test_every_setting_is_in_the_reference() -> None:
    told = " ".join(words_in_code(DOCS / "reference" / "configuration.md"))
    modules = (ROOT / "kinetic_core" / name for name in ("settings.py", "profiles.py"))
    read = {
        name
        for module in modules
        for name in re.findall(
            r"\"((?:KINETIC|STORAGE|HF|XDG|GOOGLE|CLOUDSDK)_[A-Z_]+)\"", module.read_text()
        )
    }
    assert len(read) > 15
    assert {name for name in read if name not in told} == set()

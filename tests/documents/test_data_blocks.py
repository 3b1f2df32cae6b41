"""Blocks of data on the pages are what their readers take, and every block for a shell is one."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from kinetic_core.accelerators.grammar import parse_accelerator
from kinetic_core.jobs.cost import read_prices
from kinetic_core.profiles import read_profiles
from tests.documents.pages import Block, blocks

YAML = blocks("yaml")
SHELL = blocks("bash")


def named(language: str, page: str) -> list[Block]:
    """The blocks of that page; there must be some."""
    found = [block for block in blocks(language) if block.page.name == page]
    assert found
    return found


def test_every_language_of_data_is_tested_here() -> None:
    assert {block.page.name for block in blocks("json")} == {"profiles.md", "clusters.md"}
    assert {block.page.name for block in blocks("toml")} == {"costs.md"}


def test_profiles_are_what_is_read(tmp_path: Path) -> None:
    for block in named("json", "profiles.md"):
        file = tmp_path / "profiles.json"
        file.write_text(block.text)
        found = read_profiles(file)
        assert found.current in found.profiles


def test_prices_are_what_is_read(tmp_path: Path) -> None:
    for block in named("toml", "costs.md"):
        file = tmp_path / "prices.toml"
        file.write_text(block.text)
        found = read_prices(file)
        named_there = [parse_accelerator(name) for name in ("tpu-v5e-4", "tpu-v5e-4:spot", "gpu-l4", "cpu")]
        assert all(found.of(accelerator) for accelerator in named_there)


def test_the_rule_of_the_bucket_is_a_lifecycle_configuration() -> None:
    for block in named("json", "clusters.md"):
        (rule,) = json.loads(block.text)["rule"]
        assert rule["action"] == {"type": "Delete"}
        assert all(prefix.endswith("/") for prefix in rule["condition"]["matchesPrefix"])


@pytest.mark.parametrize("block", YAML, ids=lambda block: block.name)
def test_a_block_of_yaml_is_one(block: Block) -> None:
    documents = list(yaml.safe_load_all(block.text))
    assert documents
    assert all(isinstance(document, dict | list) for document in documents)


@pytest.mark.promise(
    "command: … shell and data",
    "outside the tutorial `kinetic` lines are parsed, not run; `gcloud` and `pip` lines only by `bash -n`",
)
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("block", SHELL, ids=lambda block: block.name)
def test_a_block_for_a_shell_is_understood_by_one(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_a_block_that_is_none_is_noticed() -> None:
    done = subprocess.run(["bash", "-n"], input="kinetic run 'a", capture_output=True, text=True, check=False)
    assert done.returncode != 0

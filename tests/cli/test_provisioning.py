"""What the verbs of provisioning refuse, and what they write, without asking any cloud."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Kinetic

UP = ["up", "--project", "my-project", "--cluster", "training"]


@pytest.mark.promise("provisioning: Names and lengths: said before the first mutation")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up"], "no project is set"),
        (["status"], "no project is set"),
        ([*UP, "-a", "cpu"], "the default pool runs it"),
        ([*UP, "-a", "tpu-v99"], "tpu-v99"),
        ([*UP, "--zone", "mars", "--channel", "fast"], "neither a zone (us-central1-a) nor a region"),
        (["up", "--project", "p" * 30, "--cluster", "c" * 21], "at most 20"),
        ([*UP, "--export", "pulumi", "x"], "use --export terraform"),
        (["pool", "add", "-a", "gpu-l4", "--slices", "2", "--project", "my-project"], "--max-nodes says"),
        (["pool", "add", "-a", "tpu-v5p-8", "--max-nodes", "3", "--project", "my-project"], "all or none"),
        (["pool", "update", "x", "--project", "my-project"], "nothing to change"),
        (["namespace", "add", "No", "--project", "my-project"], "--namespace 'No'"),
    ],
)
def test_what_cannot_be_is_a_user_error(kinetic: Kinetic, words: list[str], said: str) -> None:
    done = kinetic(*words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert kinetic(*words, "--json").json["exit_code"] == 2


@pytest.mark.promise("provisioning: that validate-style parsing accepts; documented")
def test_terraform_that_refers_to_what_it_has(kinetic: Kinetic, tmp_path: Path) -> None:
    pools = ["-a", "tpu-v5p-8", "-a", "gpu-l4", "-a", "tpu-v5e-4"]
    told = kinetic(*UP, *pools, "--namespace", "ml", "--export", "terraform", str(tmp_path / "x"), "--json")
    (file,) = told.json["files"]
    text = Path(file).read_text()
    document: dict[str, Any] = json.loads(text)
    blocks = {f"{kind}.{name}" for kind, named in document["resource"].items() for name in named}
    used = set(re.findall(r"\$\{(google_\w+\.\w+)\.", text))
    used |= {name for kind in document["resource"].values() for one in kind.values() for name in needs(one)}
    assert used <= blocks
    assert "${data.google_project.this.number}" in text
    pool = document["resource"]["google_container_node_pool"]["tpu_v5p_8"]
    assert pool["placement_policy"] == {"type": "COMPACT", "tpu_topology": "2x2x2"}
    names = [key for block in objects(document["resource"]) for key in block]
    assert [name for name in names if not re.fullmatch(r"[a-z][a-z0-9_-]*", name)] == []


def needs(block: dict[str, Any]) -> list[str]:
    found: list[str] = block.get("depends_on", [])
    return found


def objects(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, dict):
        return [node, *(found for value in node.values() for found in objects(value))]
    return [found for item in node for found in objects(item)] if isinstance(node, list) else []

"""The verbs and options of keras-kinetic: ours have the same, or the guide says what is there instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer.main

from kinetic_core.cli.main import build
from tests.conftest import Kinetic
from tests.documents.test_migration import rows

PLACE = "--project --zone --cluster"
CLEANUP = "--cleanup-timeout --cleanup-poll-interval"
VERBS = {
    "": "--profile --version",
    "init": f"{PLACE} --profile-name --namespace --yes -y",
    "up": f"{PLACE} --force-destroy --no-force-destroy --accelerator --min-nodes --profile-name --namespace"
    " --yes --preview",
    "down": f"{PLACE} --yes",
    "status": PLACE,
    "pool add": f"{PLACE} --accelerator --min-nodes --spot --reservation --preview --yes",
    "pool remove": f"{PLACE} --preview --yes",
    "pool list": PLACE,
    "jobs list": f"{PLACE} --namespace",
    "jobs status": PLACE,
    "jobs logs": f"{PLACE} --follow -f --tail -n",
    "jobs result": f"{PLACE} --timeout --cleanup --no-cleanup {CLEANUP}",
    "jobs cancel": f"{PLACE} {CLEANUP}",
    "jobs cleanup": f"{PLACE} --k8s --no-k8s --gcs --no-gcs {CLEANUP}",
    "jobs debug": f"{PLACE} --port",
    "build-image": f"{PLACE} --repo --category --tag --dockerfile --update-credentials --yes -y",
    "profile create": f"{PLACE} --namespace --force",
    "profile ls": "",
    "profile use": "",
    "profile unset": "",
    "profile show": "",
    "profile rm": "--yes",
    "config": "",
    "config show": "",
    "accelerators": f"{PLACE} --live",
}
"""What keras-kinetic documents of its command."""
ELSEWHERE = {
    ("up", "--preview"): "`up --preview`, `pool … --preview`",
    ("pool add", "--preview"): "`up --preview`, `pool … --preview`",
    ("pool remove", "--preview"): "`up --preview`, `pool … --preview`",
    ("up", "--force-destroy"): "`up --force-destroy`",
    ("up", "--no-force-destroy"): "`up --force-destroy`",
    (
        "build-image",
        "--update-credentials",
    ): "`build-image` asks for a repository and for Docker Hub's password",
}
"""What the command has not, by the row of the guide that says so."""


def options_of(verb: str) -> set[str]:
    """The options of a verb, those that help leaves out included; options of values may be positional."""
    command: Any = typer.main.get_command(build())
    for word in verb.split():
        if not hasattr(command, "commands"):
            break  # `config show` is `config`, which takes the word
        assert word in command.commands, f"there is no verb {verb!r}"
        command = command.commands[word]
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_its_options(verb: str) -> None:
    lacking = set(VERBS[verb].split()) - options_of(verb)
    assert lacking == {name for where, name in ELSEWHERE if where == verb}


def test_what_is_not_here_is_in_the_guide() -> None:
    assert set(ELSEWHERE.values()) <= {cells[0] for cells in rows()}


def test_pools_of_a_new_cluster_have_their_fewest_machines(kinetic: Kinetic, tmp_path: Path) -> None:
    words = ["up", "--project", "my-project", "-a", "gpu-l4", "--min-nodes", "2", "--export", "terraform"]
    told = kinetic(*words, str(tmp_path / "x"), "--json")
    document = json.loads(Path(told.json["files"][0]).read_text())
    assert (
        document["resource"]["google_container_node_pool"]["gpu_l4_1"]["autoscaling"]["min_node_count"] == 2
    )
    slices = kinetic("up", "--project", "my-project", "-a", "tpu-v5p-8", "--min-nodes", "1")
    assert (slices.code, "--min-nodes is 0 or 2" in slices.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["profile", "create"], "Missing argument 'NAME'"),
        (["profile", "create", "team", "--project", "p"], "has no zone and no cluster"),
        (["up", "--project", "my-project", "--accelerator", "cpu"], "the default pool runs it"),
        (["build-image", "--yes"], "set KINETIC_PROJECT"),
    ],
)
def test_nothing_is_asked_for(kinetic: Kinetic, words: list[str], said: str) -> None:
    done = kinetic(*words)
    assert (done.code, said in done.err) == (2, True), done.err

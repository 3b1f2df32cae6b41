"""What the verbs of provisioning refuse, and what they write, without a cluster."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.profiles import profiles_file, read_profiles
from tests.cli.test_credentials import environment
from tests.conftest import Kinetic
from tests.serving import Answering, serving

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


class OneCluster(Answering):
    """A cloud with a cluster in each project, and with tokens for everybody."""

    def do_POST(self) -> None:
        kind = "urn:ietf:params:oauth:token-type:access_token"
        token = {"access_token": "t", "issued_token_type": kind, "token_type": "Bearer", "expires_in": 3600}
        self.answer(200, token)

    def do_GET(self) -> None:
        self.answer(200, {"clusters": [{"name": "training", "location": "us-central1-a"}]})


@pytest.fixture
def one_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cluster `training` in each project; where profiles are kept."""
    with serving(OneCluster) as place:
        account = environment(tmp_path, int(place.rpartition(":")[2]))["GOOGLE_APPLICATION_CREDENTIALS"]
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", account)
        monkeypatch.setenv("CLOUDSDK_API_ENDPOINT_OVERRIDES_CONTAINER", f"http://{place}/")
        yield profiles_file(os.environ)


INIT = ["init", "--cluster", "training", "--project"]
A = {"project": "a", "zone": "us-central1-a", "cluster": "training"}


def store(file: Path, **profiles: Any) -> None:
    file.write_text(json.dumps({"current": None, "profiles": profiles}))


def test_init_keeps_what_a_profile_of_the_cluster_says(kinetic: Kinetic, one_cluster: Path) -> None:
    store(one_cluster, training={**A, "container_image": "mine:1", "bucket": "old"})
    assert kinetic(*INIT, "a", "--json").json["profile"] == "training"
    kept = read_profiles(one_cluster)
    assert kept.current == "training"
    assert kept.get("training") == {
        **A,
        "namespace": "default",
        "backend": "gke",
        "container_image": "mine:1",
    }


def test_init_leaves_the_profile_of_another_project(kinetic: Kinetic, one_cluster: Path) -> None:
    theirs = {**A, "container_image": "theirs:1"}
    store(one_cluster, training=theirs)
    told = kinetic(*INIT, "b")
    assert "profile training-b" in told.out
    assert "profile training is of another cluster: training in us-central1-a of project a" in told.out
    kept = read_profiles(one_cluster)
    assert (kept.current, kept.get("training")) == ("training-b", theirs)
    ours = {**A, "project": "b", "namespace": "default", "backend": "gke"}
    assert kept.get("training-b") == ours
    assert kinetic(*INIT, "b", "--json").json["profile"] == "training-b", "its own, with the second call"


def test_a_name_for_each_of_three_clusters(kinetic: Kinetic, one_cluster: Path) -> None:
    far, local = {**A, "zone": "us-west1-a"}, {"backend": "local"}
    store(one_cluster, training=far, **{"training-us-central1-a": local})
    assert kinetic(*INIT, "a", "--json").json["profile"] == "training-us-central1-a-2"
    assert read_profiles(one_cluster).get("training") == far


def test_init_replaces_a_profile_that_is_named(kinetic: Kinetic, one_cluster: Path) -> None:
    store(one_cluster, work={**A, "container_image": "theirs:1"})
    told = kinetic(*INIT, "b", "--profile-name", "work")
    assert "replaced profile work, which was of training in us-central1-a of project a" in told.out
    assert "container_image" not in read_profiles(one_cluster).get("work")


def needs(block: dict[str, Any]) -> list[str]:
    found: list[str] = block.get("depends_on", [])
    return found


def objects(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, dict):
        return [node, *(found for value in node.values() for found in objects(value))]
    return [found for item in node for found in objects(item)] if isinstance(node, list) else []

"""Profiles fill in what neither the call nor the environment says; a broken file is refused and survives."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kinetic_core
from kinetic_core.backends.base import backend_of, open_backend
from kinetic_core.connections import Connections
from kinetic_core.errors import ConfigurationError, OtherCluster
from kinetic_core.jobs.observe import find
from kinetic_core.profiles import editing, read_profiles
from kinetic_core.settings import Settings, read_settings, settings_of_profiles
from kinetic_core.testing.memory_store import MemoryObjectStore

TEAM = {"project": "p", "zone": "europe-west4-b", "cluster": "c"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "profiles.json"


def store(file: Path, current: str | None = "team", **profiles: Any) -> dict[str, str]:
    file.write_text(json.dumps({"current": current, "profiles": profiles}))
    return {"KINETIC_PROFILES_FILE": str(file)}


def test_each_profile_as_if_chosen_without_variables(file: Path) -> None:
    env = store(file, team=TEAM, config={"kubeconfig": "/k", "bucket": "b"})
    env |= {"KINETIC_CLUSTER": "x", "KINETIC_BUCKET": "mine", "KINETIC_NAMESPACE": "n"}
    team, config = settings_of_profiles(env)
    assert (team.project, team.zone, team.cluster) == ("p", "europe-west4-b", "c")
    assert (team.bucket, team.namespace, team.profile) == ("mine", "n", "team")
    assert (config.kubeconfig, config.bucket, config.profile) == ("/k", "b", "config")
    assert config.cluster == Settings.cluster


@pytest.mark.promise("gke: Project, zone, cluster, namespace and profiles resolve as specified")
@pytest.mark.promise("command: Profiles and precedence as specified (W76)")
def test_argument_before_variable_before_profile_before_default(file: Path) -> None:
    env = store(file, team={**TEAM, "namespace": "n"})
    settings = read_settings({**env, "KINETIC_CLUSTER": "other"}).with_arguments(zone="z")
    assert (settings.project, settings.zone, settings.cluster, settings.namespace) == ("p", "z", "other", "n")
    origins = {name: settings.origin(name) for name in ("zone", "cluster", "namespace", "bucket", "profile")}
    assert origins == {
        "zone": "argument",
        "cluster": "KINETIC_CLUSTER",
        "namespace": "profile team",
        "bucket": "default",
        "profile": str(file),
    }


@pytest.mark.promise("command: Profiles and precedence as specified (W76)")
def test_google_cloud_project_comes_after_the_profile(file: Path) -> None:
    env = {**store(file, team=TEAM), "GOOGLE_CLOUD_PROJECT": "last"}
    assert read_settings(env).project == "p"
    file.unlink()
    assert (read_settings(env).project, read_settings(env).origin("project")) == (
        "last",
        "GOOGLE_CLOUD_PROJECT",
    )


def test_the_variable_chooses_before_the_current_profile(file: Path) -> None:
    env = store(file, team=TEAM, mine={"backend": "local", "local_store": "/jobs"})
    settings = read_settings({**env, "KINETIC_PROFILE": "mine"})
    assert (settings.backend, settings.local_store, settings.project) == ("local", Path("/jobs"), "")
    with pytest.raises(ConfigurationError, match=r"no profile 'nobody' in .*profiles.json.*mine, team"):
        read_settings({**env, "KINETIC_PROFILE": "nobody"})


def test_every_variable_of_the_design_has_a_field(file: Path) -> None:
    profile = {
        **TEAM,
        "backend": "gke",
        "kubeconfig": "/k",
        "kube_context": "x",
        "bucket": "b/p",
        "container_image": "i",
        "storage_emulator_host": "http://s",
        "api_endpoint_overrides": {"container": "http://g", "iam": "http://i"},
    }
    settings = read_settings(
        {**store(file, team=profile), "CLOUDSDK_API_ENDPOINT_OVERRIDES_IAM": "http://mine"}
    )
    for name in set(profile) - {"api_endpoint_overrides"}:
        assert getattr(settings, name) == profile[name]
    assert hash(settings) == hash(settings.with_arguments(namespace=settings.namespace))
    assert settings.api_endpoint_overrides == {"container": "http://g", "iam": "http://mine"}


def test_a_named_cluster_outranks_a_lower_kubeconfig(file: Path) -> None:
    env = store(file, team={"kubeconfig": "/k", "namespace": "n"})
    assert read_settings(env).kubeconfig == "/k"
    assert read_settings({**env, "KINETIC_PROJECT": "p"}).kubeconfig == ""
    variable = {**env, "KINETIC_KUBECONFIG": "/own", "KINETIC_PROJECT": "p"}
    assert read_settings(variable).kubeconfig == "/own"
    assert read_settings(variable).with_arguments(cluster="c").kubeconfig == ""
    assert read_settings(variable).with_arguments(namespace="n").kubeconfig == "/own"


def test_a_current_profile_that_is_gone_is_none(file: Path) -> None:
    assert read_settings(store(file, current="gone", team=TEAM)).profile is None


@pytest.mark.promise("command: A corrupt file survives with a message")
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "cannot be read"),
        ("[]", "no JSON object"),
        ('{"profiles": [], "current": null}', "'profiles' an object"),
        ('{"profiles": {}, "curent": "x"}', "'curent' is unknown"),
        ('{"profiles": {"a": {"project": "p", "zone": "z"}}}', "'a' has no cluster"),
        (
            '{"profiles": {"a": {"backend": "local", "projet": "p"}}}',
            "'projet' is unknown; fields are project",
        ),
        ('{"profiles": {"a": {"backend": "local", "zone": 3}}}', "'zone' must be a text"),
        ('{"profiles": {"a": {"backend": "local", "api_endpoint_overrides": "x"}}}', "must be an object of"),
        ("\xff\xfe", "cannot be read"),
    ],
)
def test_a_broken_file_is_named_and_survives(text: str, named: str, file: Path) -> None:
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigurationError, match=named) as refused:
        read_settings({"KINETIC_PROFILES_FILE": str(file)})
    assert str(file) in str(refused.value)
    with pytest.raises(ConfigurationError), editing(file) as box:
        box[0] = box[0].having("new", TEAM)
    assert file.read_bytes() == text.encode("latin-1")


def test_an_unusable_profile_value_names_the_profile(file: Path) -> None:
    with pytest.raises(ConfigurationError, match="backend='slurm' of profile team"):
        read_settings(store(file, team={**TEAM, "backend": "slurm"}))


@pytest.mark.promise("command: Atomic writes")
def test_editing_keeps_every_editors_change(file: Path) -> None:
    def add(number: int) -> None:
        with editing(file) as box:
            box[0] = box[0].having(f"p{number}", TEAM)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = read_profiles(file)
    assert sorted(kept.profiles) == [f"p{number}" for number in range(8)]
    assert kept.current in kept.profiles
    text = file.read_text()
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"
    assert [path.name for path in file.parent.glob(".profiles-*")] == []


def test_removing_the_current_profile_leaves_none(file: Path) -> None:
    store(file, team=TEAM)
    with editing(file) as box:
        box[0] = box[0].without("team")
    assert (read_profiles(file).current, read_profiles(file).profiles) == (None, {})


def reference(**changed: str) -> kinetic_core.JobHandle:
    names = ("job_id", "backend", "namespace", "bucket_name", "k8s_name", "image_uri", "accelerator")
    others = dict.fromkeys((*names, "func_name", "display_name", "created_at"), "x")
    place = {"project": "p", "zone": "z", "cluster_name": "c", "backend": "gke", "store_uri": "gs://b"}
    own = {"namespace": "default", "k8s_name": "kinetic-x", "created_at": "2026-11-22T00:00:00Z"}
    return kinetic_core.JobHandle(**{**others, **place, **own, **changed})


def test_a_handle_is_looked_for_on_its_own_cluster() -> None:
    settings = Settings(project="mine", cluster="mine", kubeconfig="/k", bucket="b")
    assert backend_of(reference(), Connections(settings)).cluster == ("p", "z", "c")
    assert backend_of(reference(zone="", cluster_name=""), Connections(settings)).cluster is None


@pytest.mark.attack
def test_a_stored_handle_cannot_choose_the_cluster() -> None:
    gke = open_backend("gke", Connections(Settings(project="p", zone="z", cluster="c", bucket="b")))
    kept = MemoryObjectStore("gs://b")
    gke.store = kept  # type: ignore[misc]
    kept.create_if_absent(
        "jobs/x/handle.json", json.dumps(reference(cluster_name="theirs").to_dict()).encode()
    )
    with pytest.raises(OtherCluster, match="cluster theirs"):
        find(gke, "x")
    by_kubeconfig = open_backend("gke", Connections(Settings(kubeconfig="/k", bucket="b")))
    by_kubeconfig.store = kept  # type: ignore[misc]
    found = find(by_kubeconfig, "x")
    assert found is not None
    assert found.cluster is None


HALF_WRITTEN = """\
import resource, sys
from pathlib import Path
from kinetic_core.errors import ConfigurationError
from kinetic_core.profiles import Profiles, editing

resource.setrlimit(resource.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))  # no file gets longer
try:
    with editing(Path(sys.argv[1])) as box:
        box[0] = Profiles(box[0].file, None, {f"p{n}": {"backend": "local"} for n in range(20)})
except ConfigurationError as exc:
    print(exc)
"""


@pytest.mark.promise("command: Atomic writes")
@pytest.mark.skipif(sys.platform == "win32", reason="there a process has no limits")
def test_a_write_that_fails_midway_leaves_what_was_there(file: Path) -> None:
    store(file, team=TEAM)
    before = file.read_text()
    assert len(before) > 64
    done = subprocess.run(
        [sys.executable, "-c", HALF_WRITTEN, str(file)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"the profiles file {file} cannot be written: File too large\n"
    assert file.read_text() == before
    assert {each.name for each in file.parent.iterdir() if "profiles" in each.name} == {
        file.name,
        f".{file.name}.lock",
    }


def refused_by_keras_kinetic(file: Path) -> str:
    """What keras-kinetic, as its documentation says, would not accept in the shared file."""
    document = json.loads(file.read_text())
    if document.keys() != {"current", "profiles"} or not isinstance(document["current"], str | None):
        return "file"
    for name, profile in document["profiles"].items():
        whole = {"project", "zone", "cluster"} <= profile.keys()
        if not whole or profile.keys() - {"project", "zone", "cluster", "namespace"}:
            return str(name)
    return ""


def test_our_profiles_do_not_break_keras_kinetics(file: Path) -> None:
    more = {**TEAM, "namespace": "n", "bucket": "b", "api_endpoint_overrides": {"container": "http://x"}}
    kinds = {"team": TEAM, "more": more, "here": {"backend": "local"}, "config": {"kubeconfig": "/k"}}
    with editing(file) as box:
        for name, profile in kinds.items():
            box[0] = box[0].having(name, profile)
        box[0] = replace(box[0], current="here")
    assert refused_by_keras_kinetic(file) == ""
    assert json.loads(file.read_text())["current"] is None
    found = read_profiles(file)
    assert (found.profiles, found.current) == (kinds, "here")
    with editing(file) as box:
        box[0] = replace(box[0], current="team").without("config").without("here").without("more")
    assert (read_profiles(file).profiles, read_profiles(file).current) == ({"team": TEAM}, "team")


def test_a_profile_that_keras_kinetic_removed_is_gone(file: Path) -> None:
    with editing(file) as box:
        box[0] = box[0].having("team", {**TEAM, "bucket": "b"})
    file.write_text(json.dumps({"current": None, "profiles": {}}))
    assert read_profiles(file).profiles == {}
    file.write_text(json.dumps({"current": "team", "profiles": {"team": {**TEAM, "cluster": "new"}}}))
    assert read_profiles(file).profiles == {"team": {**TEAM, "cluster": "new", "bucket": "b"}}

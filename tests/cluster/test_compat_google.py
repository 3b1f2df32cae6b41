"""What keras-kinetic documents of a GKE cluster and its images, with the stand-in for Google's APIs."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kinetic_core.compat as kinetic
from kinetic_core import build_image
from kinetic_core._runner import wire
from kinetic_core.errors import ConfigurationError
from tests.cluster.images import GOOGLE, LOCATION, Images
from tests.cluster.objects import stored
from tests.compat.project import write

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.google]
CLUSTER = {"project": "test-project", "zone": "us-central1-a", "cluster": "kinetic-cluster"}


def where() -> str:
    return os.environ["JOB_ID"]


@pytest.fixture
def profile(google: Any, gke: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write a profile as keras-kinetic does; what is given differs from the cluster that there is."""
    monkeypatch.delenv("GOOGLE_CLOUD_PROJECT")

    def write(**fields: str) -> None:
        team = {**CLUSTER, "namespace": gke["KINETIC_NAMESPACE"], **fields}
        file = Path(os.environ["KINETIC_PROFILES_FILE"])
        file.write_text(json.dumps({"current": "team", "profiles": {"team": team}}))

    return write


@pytest.mark.parametrize("name", ["project", "zone", "cluster"])
def test_argument_before_variable_before_profile(
    name: str, profile: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job runs, because what comes first names the cluster that exists, and all else does not."""
    profile(**{name: "elsewhere"})
    monkeypatch.setenv(f"KINETIC_{name.upper()}", CLUSTER[name])
    handle = kinetic.run(accelerator="cpu")(where).run_async()
    assert (handle.project, handle.zone, handle.cluster_name) == tuple(CLUSTER.values())
    monkeypatch.setenv(f"KINETIC_{name.upper()}", "elsewhere")
    by_argument: dict[str, Any] = {name: CLUSTER[name]}
    again = kinetic.run(accelerator="cpu", **by_argument)(where).run_async()
    assert [one.result(timeout=300) for one in (handle, again)] == [handle.job_id, again.job_id]


def test_google_cloud_project_comes_after_the_profile(
    profile: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "elsewhere")
    profile()
    handle = kinetic.run(accelerator="cpu")(where).run_async()
    assert handle.result(timeout=300) == handle.job_id
    Path(os.environ["KINETIC_PROFILES_FILE"]).unlink()
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", CLUSTER["project"])
    alone = kinetic.run(accelerator="cpu")(where).run_async()
    assert (alone.project, alone.zone, alone.cluster_name) == tuple(CLUSTER.values())
    assert alone.result(timeout=300) == alone.job_id


def test_of_a_submission_to_no_cluster_nothing_is_left(profile: Callable[..., None], location: str) -> None:
    profile()
    kinetic.run(accelerator="cpu")(where).run_async().cleanup()  # what all jobs share is stored
    before = stored(location, "")
    with pytest.raises(ConfigurationError, match="clusters/elsewhere"):
        kinetic.run(accelerator="cpu", cluster="elsewhere")(where).run_async()
    assert stored(location, "") == before


def test_what_no_pool_has_is_named_with_what_to_do(
    gke: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in GOOGLE.items():
        monkeypatch.setenv(name, value)
    handle = kinetic.run(accelerator="v6e-4x4")(where).run_async()
    with pytest.raises(RuntimeError, match=r"no node pool .*tpu-v6e-slice.*pools are default-pool"):
        handle.result(timeout=300)
    handle.cleanup()


TRAIN = '''\
def versions(*names):
    """The versions of packages in the image, and what Keras computes with."""
    import os
    from importlib.metadata import PackageNotFoundError, version

    found = {"backend": os.environ["KERAS_BACKEND"]}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Write the files of a repository, with a module in `src/inner`, and import that."""
    monkeypatch.delenv("KINETIC_PACKAGE_ROOT", raising=False)

    def make(**files: str) -> ModuleType:
        (tmp_path / ".git").mkdir(exist_ok=True)
        write(tmp_path, **{"src/inner/compat_versions.py": TRAIN, **files})
        monkeypatch.syspath_prepend(str(tmp_path / "src/inner"))
        return importlib.import_module("compat_versions")

    yield make
    sys.modules.pop("compat_versions", None)


def submitted(module: ModuleType, *names: str, **options: Any) -> kinetic.JobHandle:
    return kinetic.run(accelerator="cpu", **options)(module.versions).run_async(*names)


def image_of(module: ModuleType) -> str:
    """The image that a job would have; nothing is built."""
    pod = kinetic.run(accelerator="cpu")(module.versions).dry_run()["spec"]["template"]["spec"]
    return str(pod["containers"][0]["image"])


def test_an_image_has_what_is_found_upwards_and_is_built_once(
    images: Images, project: Callable[..., ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = project(**{"requirements.txt": "Six==1.17.0\nlibtpu==0.0.2\n"})
    handle = submitted(module, "six", "libtpu")
    told = capsys.readouterr().err  # which is no terminal
    assert "dependencies: requirements.txt" in told
    assert "kinetic: image: Step #" in told
    assert f"submitted {handle.job_id}" in told
    assert handle.image_uri.startswith(
        f"{LOCATION}-docker.pkg.dev/test-project/kn-{images.cluster}/base@sha256:"
    )
    (built,) = (name for name in images.builds if ":cpu-" in name)
    assert handle.result(timeout=300) == {"six": "1.17.0", "libtpu": None, "backend": "jax"}
    before = images.builds
    (tmp_path / "requirements.txt").write_text("six == 1.17.0  # spelled otherwise\nlibtpu==0.0.2\n")
    again = submitted(module)
    assert (again.image_uri, images.builds) == (handle.image_uri, before)
    (tmp_path / "requirements.txt").write_text("six==1.16.0\n")
    other = submitted(module, "six")
    assert other.image_uri != handle.image_uri
    assert images.builds[built] == 1
    assert other.result(timeout=300)["six"] == "1.16.0"
    again.cleanup()


def test_requirements_beyond_the_repository_do_not_count(
    images: Images, project: Callable[..., ModuleType], tmp_path: Path
) -> None:
    module = project(**{"src/inner/.git/config": ""})
    alone = image_of(module)
    (tmp_path / "requirements.txt").write_text("six==1.17.0\n")
    assert image_of(module) == alone
    (tmp_path / "src/inner/.git/config").unlink()
    (tmp_path / "src/inner/.git").rmdir()
    assert image_of(module) != alone


@pytest.mark.parametrize("line", ["-e .", "./wheels/own.whl", "own @ file:///home/me/own", "../own"])
def test_a_local_path_is_refused_with_its_line(
    line: str, images: Images, project: Callable[..., ModuleType]
) -> None:
    module = project(**{"requirements.txt": f"six\n# our own\n{line}\n"})
    before = images.requests
    with pytest.raises(ValueError, match=r"requirements\.txt:3: "):
        submitted(module)
    assert images.requests == before


def test_a_build_that_fails_is_told(images: Images, project: Callable[..., ModuleType]) -> None:
    module = project(**{"requirements.txt": "no-such-package-anywhere==1\n"})
    before = [job.job_id for job in kinetic.list_jobs()]
    with pytest.raises(RuntimeError, match="no-such-package-anywhere was not found"):
        submitted(module)
    assert [job.job_id for job in kinetic.list_jobs()] == before


def test_a_base_image_that_is_missing_is_told_with_what_to_do(
    images: Images, project: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repository is that of the argument, before that of the variable, before that of the cluster."""
    module = project(**{"requirements.txt": "six\n"})
    place = f"{LOCATION}-docker.pkg.dev/test-project"
    with pytest.raises(
        ConfigurationError, match=rf"no base image .*{place}/kn-{images.cluster}.*build_image"
    ):
        submitted(module, container_image="prebuilt")
    monkeypatch.setenv("KINETIC_BASE_IMAGE_REPO", f"{place}/of-variable")
    with pytest.raises(ConfigurationError, match=r"no base image .*of-variable"):
        submitted(module, container_image="prebuilt")
    with pytest.raises(ConfigurationError, match=r"no base image .*of-argument"):
        submitted(module, container_image="prebuilt", base_image_repo=f"{place}/of-argument")


MODEL = '''\
def trained(epochs):
    """A step of training with a library that no requirement names."""
    import keras
    import numpy as np

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    model.fit(np.ones((8, 1)), np.ones((8, 1)), epochs=epochs, verbose=0)
    return keras.backend.backend(), int(model.optimizer.iterations)
'''


def test_keras_is_installed_though_nobody_names_it(
    images: Images, project: Callable[..., ModuleType], caplog: pytest.LogCaptureFixture
) -> None:
    module = project(**{"requirements.txt": "six==1.17.0\n", "src/inner/compat_versions.py": MODEL})
    handle = kinetic.run(accelerator="cpu")(module.trained).run_async(2)
    assert "installed besides, because no requirement names it: keras" in caplog.text
    assert handle.result(timeout=300) == ("jax", 2)


def test_jax_never_takes_the_cpu_of_an_accelerators_node(
    images: Images, project: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This node plays one: JAX finds no device and fails, unless it is told to take the CPU."""
    work = "def platform():\n    import jax\n\n    return jax.devices()[0].platform\n"
    module = project(**{"requirements.txt": "jax  # kn:keep\n", "src/inner/compat_versions.py": work})
    handle = kinetic.run(accelerator="l4", spot=True)(module.platform).run_async()
    with pytest.raises((RuntimeError, AssertionError)):  # by JAX, with CUDA's plugin and without it
        handle.result(timeout=300, cleanup=False)
    assert "kinetic: asked for gpu-l4-1:spot, and the pod has no GPU" in (handle.logs() or "")
    handle.cleanup()
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    captured = kinetic.run(accelerator="l4", spot=True, capture_env_vars=["JAX_PLATFORMS"])
    assert captured(module.platform).run_async().result(timeout=300) == "cpu"


def test_a_repository_of_git_is_a_requirement(
    images: Images, project: Callable[..., ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody answers at its address: that the build went there says that it is understood."""
    address = "git+https://127.0.0.1:9/acme/own.git@main#egg=acme-own"
    with pytest.raises(RuntimeError, match=r"127\.0\.0\.1:9/acme/own\.git"):
        submitted(project(**{"requirements.txt": f"six\n-e {address}\n"}))


OWN_IMAGE = r"""
FROM python:3.11-slim
RUN mkdir -p /app && printf '%s\n' 'KINETIC_PROTOCOL = PROTOCOL' 'import sys' \
    'print("the runner of the image", flush=True)' 'sys.exit(7)' > /app/remote_runner.py
"""


def test_a_runner_of_the_image_is_run_instead_of_ours(
    images: Images, gke: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(OWN_IMAGE.replace("= PROTOCOL", f"= {wire.PROTOCOL}"))
    repository = f"{LOCATION}-docker.pkg.dev/test-project/kn-{images.cluster}"
    built = build_image(repository, ["cpu"], dockerfile=file, progress=lambda _: None)
    handle = kinetic.run(accelerator="cpu", container_image=built["cpu"])(where).run_async()
    with pytest.raises(RuntimeError, match="7"):
        handle.result(timeout=300, cleanup=False)
    assert "the runner of the image" in (handle.logs() or "")
    handle.cleanup()

"""The documented examples of keras-kinetic on a cluster, as a user starts them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

import kinetic_core
from tests.cluster.images import LOCATION, own_images
from tests.examples.test_from_keras_kinetic import PLAIN, PRINTED, WITH_FRAMEWORKS, printed
from tests.hugging_face import FakeHub

pytestmark = pytest.mark.slow
REVIEWS = {
    "main": {
        "README.md": b"# reviews",
        "train.csv": b"text,label\ngood,1\nbad,0\nfine,1\n",
        "test.csv": b"text,label\nwell,1\n",
    }
}


@pytest.fixture(scope="module")
def frameworks() -> Iterator[str]:
    """An image with what the examples import, built once."""
    with own_images() as images, pytest.MonkeyPatch.context() as patch:
        for name, value in images.settings.items():
            patch.setenv(name, value)
        repository = f"{LOCATION}-docker.pkg.dev/test-project/kn-{images.cluster}"
        file = Path(__file__).with_name("Dockerfile.frameworks")
        kinetic_core.default_client().close()
        built = kinetic_core.build_image(
            repository, ["cpu"], tag="frameworks", dockerfile=file, progress=lambda _: None
        )
        kinetic_core.default_client().close()
        yield built["cpu"]


@pytest.fixture
def arguments(
    request: pytest.FixtureRequest, gke: dict[str, str], location: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[str]]:
    """The words behind an example's name: a directory of a bucket, or a dataset of a hub that is here."""
    name = request.getfixturevalue("name")
    if name.startswith("checkpoints_"):
        yield [f"gs://{location}/{secrets.token_hex(4)}"]
    elif name == "hugging_face.py":
        host = os.environ["STORAGE_EMULATOR_HOST"].partition("//")[2].partition(":")[0]
        with FakeHub({"acme/reviews": REVIEWS}, host=host) as hub:
            monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
            yield ["hf://acme/reviews"]
    else:
        yield []


@pytest.mark.parametrize("name", PLAIN)
def test_on_a_cluster(name: str, gke: dict[str, str]) -> None:
    words = ["tpu-v5e-2x2"] if name == "mixed_accelerators.py" else []
    assert printed(name, *words) == PLAIN[name]


@pytest.mark.alone
@pytest.mark.google
@pytest.mark.parametrize("name", [*WITH_FRAMEWORKS, "hugging_face.py"])
def test_with_frameworks(name: str, arguments: list[str], frameworks: str) -> None:
    assert printed(name, *arguments, KINETIC_CONTAINER_IMAGE=frameworks) == PRINTED[name]


@pytest.mark.alone
@pytest.mark.slices
def test_on_two_hosts(gke: dict[str, str], frameworks: str) -> None:
    assert printed("two_hosts_jax.py", KINETIC_CONTAINER_IMAGE=frameworks) == PRINTED["two_hosts_jax.py"]

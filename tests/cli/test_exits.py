"""Which error ends the command with which code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic_core import errors
from kinetic_core.cli.exit_codes import Exit, exit_code
from kinetic_core.errors import JobError, KineticError
from tests.cli.all_errors import every_error
from tests.cli.all_verbs import BATCH_VERBS, JOB_VERBS
from tests.cli.clusters import KUBECONFIG, NOBODY
from tests.conftest import Kinetic
from tests.serving import Answering, serving

NO_JOB, NO_BATCH = "job-0000000000000000", "grp-0000000000000000"
CLOUD = (
    errors.StoreError,
    errors.ClusterError,
    errors.CloudError,
    errors.ProvisioningError,
    errors.ImageError,
)
"""What a script may try again."""


def expected(error: KineticError) -> Exit:
    if isinstance(error, JobError) or type(error) is KineticError:
        return Exit.JOB_FAILED
    if isinstance(error, errors.WaitTimeout):
        return Exit.TIMEOUT
    return Exit.CLOUD_ERROR if isinstance(error, CLOUD) else Exit.USER_ERROR


@pytest.mark.promise("command: Exit codes tell user, cloud and job apart")
@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_every_error_has_a_code(error: KineticError) -> None:
    assert exit_code(error) is expected(error)


class Cloud(Answering):
    """A bucket that has a job, and an API server that permits nothing."""

    def do_GET(self) -> None:
        entry = {
            "name": "index/098236278000-job-0123456789abcdef",
            "size": "0",
            "generation": "1",
            "timeCreated": "2026-11-21T18:00:00Z",
            "metadata": {"func_name": "f", "namespace": "default", "created_at": "2026-11-21T18:00:00Z"},
        }
        is_bucket = self.path.startswith("/storage/")
        body = {"items": [entry] if "prefix=index" in self.path else []}
        self.answer(200 if is_bucket else 403, body, {"Content-Type": "application/json"})


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The settings of it; its address."""
    with serving(Cloud) as place:
        address = f"http://{place}"
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        monkeypatch.setenv("KINETIC_BACKEND", "gke")
        monkeypatch.setenv("KINETIC_BUCKET", "b")
        monkeypatch.setenv("KINETIC_PROJECT", "p")
        monkeypatch.setenv("KINETIC_KUBECONFIG", str(tmp_path / "kubeconfig"))
        (tmp_path / "kubeconfig").write_text(KUBECONFIG.replace(NOBODY, address))
        yield address


@pytest.mark.promise("command: Exit codes tell user, cloud and job apart")
@pytest.mark.parametrize("words", [("jobs", "list"), ("reap",)])
def test_a_cluster_that_permits_nothing_is_code_3(
    words: tuple[str, ...], cloud: str, kinetic: Kinetic
) -> None:
    done = kinetic(*words)
    assert (done.code, done.out, done.err.startswith("error: ")) == (3, "", True)
    told = kinetic(*words, "--json").json
    assert (told["schema"], told["error"], told["exit_code"]) == ("error/1", "ClusterError", 3)


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_code_3(cloud: str, kinetic: Kinetic, tmp_path: Path) -> None:
    """It is asked again for half a minute."""
    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    told = kinetic("jobs", "list", "--json").json
    assert (told["schema"], told["error"], told["exit_code"]) == ("error/1", "ClusterUnreachable", 3)
    assert NOBODY in told["message"]


@pytest.mark.promise("command: Unknown job")
@pytest.mark.parametrize(
    "words",
    [
        *(("jobs", verb, NO_JOB) for verb in JOB_VERBS),
        ("cost", NO_JOB),
        *(("batch", verb, NO_BATCH) for verb in BATCH_VERBS),
        ("cost", "--batch", NO_BATCH),
    ],
    ids=" ".join,
)
def test_what_is_not_there_is_code_2(words: tuple[str, ...], kinetic: Kinetic, local_jobs: Path) -> None:
    done = kinetic(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: no {'batch' if NO_BATCH in words else 'job'} {words[-1]} in ")
    told = kinetic(*words, "--json")
    assert (told.code, told.json["exit_code"], told.err) == (2, 2, "")
    assert told.json["error"] == ("BatchNotFound" if NO_BATCH in words else "JobNotFound")

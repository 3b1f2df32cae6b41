"""What needs no job: names, decoration, `Data`, handles as data."""

from __future__ import annotations

import functools
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kinetic_core.compat as kinetic
from kinetic_core.compat.collections import map as map_over
from kinetic_core.compat.credentials import ensure_credentials
from kinetic_core.errors import ConfigurationError

MODULES = ("collections", "credentials", "data", "debug", "job_status", "jobs")
PARAMETERS = [
    "accelerator", "container_image", "base_image_repo", "zone", "project", "capture_env_vars", "cluster",
    "backend", "namespace", "volumes", "spot", "output_dir", "debug",
]  # fmt: skip
FIELDS = {
    "job_id": "job-0123456789abcdef", "backend": "gke", "project": "p", "cluster_name": "c", "zone": "z",
    "namespace": "default", "bucket_name": "b", "k8s_name": "kinetic-job-0123456789abcdef", "image_uri": "i",
    "accelerator": "cpu", "func_name": "f", "display_name": "d", "created_at": "2026-01-01T00:00:00Z",
}  # fmt: skip


def double(number: int) -> int:
    """Twice as much."""
    return 2 * number


def test_names_and_modules() -> None:
    assert set(kinetic.__all__) >= {
        "run",
        "RemoteCallable",
        "Data",
        "JobHandle",
        "attach",
        "list_jobs",
        "__version__",
    }
    assert set(kinetic.__all__) >= {"BatchHandle", "BatchError", "attach_batch", *MODULES}
    assert kinetic.jobs.JobStatus is kinetic.job_status.JobStatus
    assert {"PENDING", "RUNNING", "SUCCEEDED", "FAILED", "NOT_FOUND"} <= set(
        kinetic.job_status.JobStatus.__members__
    )


def test_the_native_package_does_not_import_it() -> None:
    probe = (
        "import sys; from kinetic_core import run, attach; print([n for n in sys.modules if 'compat' in n])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_options_have_their_names_order_and_defaults() -> None:
    parameters = inspect.signature(kinetic.run).parameters
    assert set(PARAMETERS) <= parameters.keys()
    assert parameters["accelerator"].default == "tpu-v5e-1"
    assert kinetic.run("cpu", "python:3.11")(double).options.container_image == "python:3.11"


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"volumes": ["/data"]}, TypeError, "volumes"),
        ({"volumes": {"data": kinetic.Data("gs://bucket/d/")}}, ValueError, "data"),
        ({"volumes": {"/data": "gs://bucket/d/"}}, TypeError, "volumes"),
        ({"backend": "slurm"}, ValueError, "slurm"),
        ({"accelerator": "gpu-h1000"}, ValueError, "h1000"),
        ({"accelerator": "cpu", "tpus": 3}, TypeError, "tpus"),
    ],
)
def test_what_run_refuses_when_it_is_evaluated(
    options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        kinetic.run(**options)


def test_a_debugged_job_on_spot_capacity_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="debug=True with spot=True"):
        kinetic.run(accelerator="l4", debug=True, spot=True)


def test_a_decorated_function_looks_like_its_own() -> None:
    decorated = kinetic.run(accelerator="cpu")(double)
    assert (decorated.__name__, decorated.__doc__, decorated.__wrapped__) == (
        "double",
        "Twice as much.",
        double,
    )
    assert isinstance(decorated, kinetic.RemoteCallable)
    assert pickle.loads(pickle.dumps(decorated)) is double


def test_what_can_be_decorated() -> None:
    on_cpu = kinetic.run(accelerator="cpu")

    class Model:
        @staticmethod
        @on_cpu
        def fit(number: int) -> int:
            return number

        @on_cpu
        def score(self, number: int) -> int:
            return number

    assert isinstance(Model.fit, kinetic.RemoteCallable)
    assert isinstance(Model().score, kinetic.RemoteCallable)
    assert on_cpu(functools.partial(double, 2)).__name__ == "double"  # type: ignore[attr-defined]
    assert isinstance(on_cpu(lambda: 1), kinetic.RemoteCallable)


@pytest.mark.parametrize("wrong", [functools.cache(double), 3])
def test_what_cannot_be_decorated(wrong: Any) -> None:
    with pytest.raises(TypeError):
        kinetic.run(accelerator="cpu")(wrong)


def test_options_are_needed() -> None:
    with pytest.raises(TypeError, match="not a bare @run"):
        kinetic.run(double)  # type: ignore[arg-type]


def test_a_handle_is_plain_data() -> None:
    handle = kinetic.JobHandle.from_dict({**FIELDS, "of_a_later_version": 1})
    assert type(handle) is kinetic.JobHandle
    assert FIELDS.items() <= handle.to_dict().items()
    assert None not in handle.to_dict().values()
    with pytest.raises(TypeError):
        kinetic.JobHandle.from_dict({"job_id": "job-1"})


def test_data_says_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    folder, one = kinetic.Data(str(tmp_path)), kinetic.Data(str(tmp_path / "a.txt"))
    assert (folder.is_dir, one.is_dir, folder.is_gcs, folder.is_hf) == (True, False, False, False)
    bucket = kinetic.Data("gs://bucket/d/", fuse=True)
    assert (bucket.is_gcs, bucket.is_dir, bucket.fuse, bucket.path) == (True, True, True, "gs://bucket/d/")
    assert "gs://bucket/d/" in repr(bucket)
    assert kinetic.Data("hf://stanfordnlp/imdb").is_hf
    assert len(folder.content_hash()) == 64 != len(one.path)
    pickle.loads(pickle.dumps(folder))


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: kinetic.Data(""), ValueError),
        (lambda: kinetic.Data("/nothing/is/here"), FileNotFoundError),
        (lambda: kinetic.Data("hf://a/b", fuse=True), ValueError),
        (lambda: kinetic.Data("gs://bucket/d/").content_hash(), ValueError),
    ],
)
def test_what_data_refuses(make: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


@pytest.mark.parametrize(
    ("inputs", "options", "error"),
    [
        ([], {}, ValueError),
        ([1], {"input_mode": "rows"}, ValueError),
        ([1], {"max_concurrent": 0}, ValueError),
        ([1], {"retries": -1}, ValueError),
        (3, {}, TypeError),
    ],
)
def test_what_a_map_refuses(inputs: Any, options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        kinetic.run(accelerator="cpu", backend="local")(double).run_async_map(inputs, **options)


def test_a_map_is_of_a_decorated_function() -> None:
    with pytest.raises(TypeError, match="run_async of a decorated function"):
        map_over(double, [1])


def test_missing_credentials_are_told_early(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(ConfigurationError):
        ensure_credentials("p", "z", "c")


def test_without_a_place_the_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(ConfigurationError, match="KINETIC_PROJECT"):
        kinetic.run(accelerator="cpu", backend="gke")(double).run_async(1)


def test_a_closed_debugging_session_may_be_closed_again() -> None:
    class Session:
        closed = 0

        def terminate(self) -> None:
            self.closed += 1

    session = Session()
    kinetic.debug.cleanup_port_forward(session)
    assert session.closed == 1

"""What needs no job: names, decoration, `Data`, handles as data."""

from __future__ import annotations

import functools
import hashlib
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kinetic_core.compat as kinetic
from kinetic_core.compat.collections import map as map_over
from kinetic_core.compat.credentials import ensure_credentials
from kinetic_core.errors import ConfigurationError
from tests.accelerators.test_reference_names import ANSWERS

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
    assert list(parameters)[: len(PARAMETERS)] == PARAMETERS
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
        ({"accelerator": "gpu-l4-3"}, ValueError, "l4"),
        ({"accelerator": "tpu-v5e-3x3"}, ValueError, "3x3"),
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

    class Either:
        @on_cpu
        @classmethod
        def name(cls, number: int) -> tuple[str, int]:
            return cls.__name__, number

    assert isinstance(Either.name, kinetic.RemoteCallable)
    assert Either.name.function(3) == ("Either", 3)


@pytest.mark.parametrize("wrong", [functools.cache(double), 3])
def test_what_cannot_be_decorated(wrong: Any) -> None:
    with pytest.raises(TypeError):
        kinetic.run(accelerator="cpu")(wrong)


def test_options_are_needed() -> None:
    with pytest.raises(TypeError, match="not a bare @run"):
        kinetic.run(double)  # type: ignore[arg-type]


def test_arguments_that_do_not_fit_are_refused_at_the_call() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'number'"):
        kinetic.run(accelerator="cpu", backend="local")(double).run_async()  # type: ignore[call-arg]


def test_a_handle_is_plain_data() -> None:
    handle = kinetic.JobHandle.from_dict({**FIELDS, "of_a_later_version": 1})
    assert type(handle) is kinetic.JobHandle
    assert FIELDS.items() <= handle.to_dict().items()
    assert None not in handle.to_dict().values()
    with pytest.raises(TypeError):
        kinetic.JobHandle.from_dict({"job_id": "job-1"})


def test_a_handle_of_the_context_of_a_job() -> None:
    names = ("job_id", "project", "cluster_name", "zone", "bucket_name", "accelerator", "display_name")
    context = SimpleNamespace(**{name: FIELDS[name] for name in names}, image_uri=None, func=double)
    handle = kinetic.JobHandle.from_job_context(context, "gke", "default", FIELDS["k8s_name"])
    expected = {**FIELDS, "image_uri": "", "func_name": "double", "created_at": handle.created_at}
    assert (type(handle), handle.debug) == (kinetic.JobHandle, False)
    assert expected.items() <= handle.to_dict().items()


def test_a_handle_of_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no backend 'slurm'"):
        kinetic.JobHandle.from_dict({**FIELDS, "backend": "slurm"}).status()


@pytest.mark.parametrize("pattern", ["A*B", "*A", "A=B"])
def test_a_pattern_has_its_star_at_the_end(pattern: str) -> None:
    with pytest.raises(ValueError, match="is not a name"):
        kinetic.run(accelerator="cpu", capture_env_vars=[pattern])


def test_no_mount_path_is_reserved() -> None:
    place = "/_kinetic/fuse-data/0"
    run = kinetic.run(accelerator="cpu", volumes={place: kinetic.Data("gs://bucket/d/", fuse=True)})
    assert list(run(double).options.volumes) == [place]


def test_helpers_that_nobody_needs_are_not_here() -> None:
    of_debugging = {"wait_for_debug_server", "start_port_forward", "print_attach_instructions"}
    assert of_debugging & set(dir(kinetic.debug)) == set()
    assert not hasattr(kinetic.credentials, "invalidate_credential_cache")
    assert kinetic.debug.cleanup_port_forward
    assert kinetic.JobHandle.debug_attach


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


def test_the_content_hash_is_the_documented_one(tmp_path: Path) -> None:
    def digest(name: str, body: bytes) -> bytes:
        return hashlib.sha256(name.encode() + b"\0" + body).digest()

    (tmp_path / "set/deep").mkdir(parents=True)
    (tmp_path / "set/a.txt").write_bytes(b"A")
    (tmp_path / "set/deep/b.txt").write_bytes(b"B")
    folder, one = kinetic.Data(str(tmp_path / "set")), kinetic.Data(str(tmp_path / "set/a.txt"))
    whole = b"dir:" + digest("a.txt", b"A") + digest("deep/b.txt", b"B")
    assert folder.content_hash() == hashlib.sha256(whole).hexdigest()
    assert one.content_hash() == hashlib.sha256(b"file:" + digest("a.txt", b"A")).hexdigest()


@pytest.mark.parametrize("kind", ["same", "by pool", "other", "refused"])
def test_every_accelerator_is_taken_or_refused_as_the_guide_says(kind: str) -> None:
    for name in (text for text, answer in ANSWERS.items() if answer == kind):
        if kind == "refused":
            with pytest.raises(ValueError, match=r"only a number|no machine with 16|32x64"):
                kinetic.run(accelerator=name)
        else:
            asked = kinetic.run(accelerator=name)(double).options.accelerator
            assert asked.spot is name.endswith(":spot")


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

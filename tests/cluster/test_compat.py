"""What keras-kinetic documents, on a cluster: the core of tests/compat. The rest runs at night."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinetic_core.backends.kubernetes.client import ClusterApi
from tests.cluster.conftest import IMAGE, KUBECONFIG
from tests.compat import test_jobs
from tests.compat.test_jobs import (  # noqa: F401  the same tests, in another place
    test_a_batch_with_failures,
    test_a_collected_job_is_gone,
    test_cleaning_up_ends_what_runs,
    test_results_of_a_cancelled_batch_are_an_error,
)
from tests.compat.test_pods import (  # noqa: F401  one job, and what it found
    found,
    test_a_broken_link_is_no_obstacle,
    test_a_directory_of_data_is_a_path,
    test_a_file_of_data_is_its_path,
    test_a_job_writes_to_its_directories,
    test_a_linked_directory_is_there_and_a_circle_ends,
    test_a_pattern_never_captures_what_is_the_machines,
    test_a_thread_that_lingers_holds_no_job,
    test_a_volume_is_at_its_path,
    test_an_exact_name_is_always_captured,
    test_captured_variables_are_set,
    test_containers_may_contain_themselves,
    test_containers_of_data_keep_their_types,
    test_containers_without_data_are_as_they_were,
    test_data_of_the_project_does_not_ship_with_it,
    test_default_excludes_stay,
    test_empty_directories_are_there,
    test_entries_of_the_path_are_there,
    test_helpers_and_what_was_set_in_them_are_there,
    test_keras_is_told_its_backend,
    test_modules_are_imported_in_the_job_too,
    test_outputs_have_a_directory_of_the_jobs,
    test_relative_paths_are_those_of_the_root,
    test_the_executable_bit_is_kept,
    test_the_job_knows_its_id,
    test_the_root_is_found_above_the_package,
    test_the_same_data_is_the_same_path,
    test_what_it_prints_is_in_its_log,
    test_what_kineticignore_names_stays,
)


@pytest.fixture(scope="module")
def settings(
    api: ClusterApi, namespace: str, location: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The settings of a user of this cluster, for the job that all tests of a module look at."""
    return {
        "KINETIC_BACKEND": "gke",
        "KINETIC_KUBECONFIG": KUBECONFIG,
        "KINETIC_BUCKET": location,
        "KINETIC_CONTAINER_IMAGE": IMAGE,
        "KINETIC_NAMESPACE": namespace,
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
    }


@pytest.fixture(autouse=True)
def _project(gke: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(Path(test_jobs.__file__).parent))


def test_a_pod_knows_its_bucket(found: dict[str, Any], location: str) -> None:  # noqa: F811
    bucket, _, prefix = location.partition("/")
    environment = found["environment"]
    assert environment["GCS_BUCKET"] == bucket
    assert environment["KINETIC_OUTPUT_DIR"].startswith(f"gs://{bucket}/{prefix}/outputs/")


def test_jax_is_told_that_there_is_no_accelerator(found: dict[str, Any]) -> None:  # noqa: F811
    assert found["environment"]["JAX_PLATFORMS"] == "cpu"


def test_a_pod_is_not_roots(found: dict[str, Any]) -> None:  # noqa: F811
    assert found["user"] == 1000

"""What keras-kinetic documents, on a cluster: what test_compat.py leaves to the night."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat import test_jobs
from tests.compat.test_jobs import (  # noqa: F401  the same tests, in another place
    test_a_call_prints_its_lines_and_returns_its_value,
    test_a_time_out_leaves_the_job_and_cancel_ends_it,
    test_an_exit_without_a_code_is_a_success,
    test_an_input_that_cannot_be_submitted,
    test_cleaning_up_a_batch_ends_it,
    test_inputs_become_arguments,
    test_other_failures_are_runtime_errors,
    test_the_exception_is_the_functions_own,
    test_what_a_job_finds,
    test_what_is_not_stored_is_not_found,
    test_without_cleanup_it_stays,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_project")]


@pytest.fixture
def _project(gke: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(Path(test_jobs.__file__).parent))

"""What keras-kinetic documents, on a cluster: what test_compat.py leaves to the night."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat import test_jobs
from tests.compat.test_batches import (  # noqa: F401  the same tests, in another place
    test_a_manifest_outlives_the_collected_values,
    test_after_a_failure_nothing_is_launched,
    test_after_a_failure_what_runs_is_cancelled,
    test_children_know_their_batch,
    test_every_mode_of_inputs,
    test_more_than_a_hundred_at_once_are_warned_of,
    test_one_at_a_time_and_as_many_as_there_are,
    test_results_in_the_order_of_their_ends,
    test_retries_are_attempts_of_an_input,
    test_waiting_for_a_batch_ends_in_time,
)
from tests.compat.test_failures import (  # noqa: F401
    test_a_handle_that_nobody_can_read_is_left_out,
    test_a_module_that_the_job_lacks_is_named,
    test_a_value_that_cannot_travel_shows_its_repr,
    test_an_argument_that_cannot_travel_is_named,
    test_what_is_removed_of_a_job_is_its_own,
)
from tests.compat.test_handles import (  # noqa: F401
    test_a_callback_that_fails_disturbs_nothing,
    test_a_handle_has_the_documented_fields,
    test_a_job_is_cleaned_up_by_halves,
    test_a_job_that_waits_or_runs_says_so,
    test_an_upload_is_said_once,
    test_jobs_are_listed_newest_first,
    test_lines_are_streamed_once_while_it_is_awaited,
    test_logs_are_read_followed_and_cut,
    test_methods_partials_and_lambdas_are_jobs,
)
from tests.compat.test_jobs import (  # noqa: F401
    test_a_call_leaves_what_result_would_leave,
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
from tests.compat.test_projects import (  # noqa: F401
    look,
    test_a_home_directory_is_no_root_whatever_is_in_it,
    test_a_notebook_belongs_to_the_working_directory,
    test_a_project_above_the_size_of_a_variable_is_warned_of,
    test_a_variable_names_the_root,
    test_a_variable_that_names_no_root_is_refused,
    test_each_call_ships_what_is_there_then,
    test_the_root_of_the_file_system_is_none,
    test_the_working_directory_below_the_root_is_kept,
    test_without_a_marker_the_root_is_the_files_own_directory,
)
from tests.compat.test_scripts import (  # noqa: F401
    script,
    test_a_pipe_gets_what_the_job_prints_and_all_else_on_stderr,
    test_a_terminal_is_told_of_the_job_too,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_project")]


@pytest.fixture
def _project(gke: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_PACKAGE_ROOT", str(Path(test_jobs.__file__).parent))

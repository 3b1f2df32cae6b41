"""All that a task of Kinetic imports, for processes that fork one process for each task or DAG file.

What the parent has imported, its children need not, which saves each task 0.15 s of a processor.
The plugin imports this module in the scheduler, if its executor forks there, and in the DAG processor.
Elsewhere it is one for settings that name modules: Celery's `imports`, `[core] mp_forkserver_preload`.
"""

# ruff: noqa: F401  importing is all that is wanted
from __future__ import annotations

from airflow.sdk import task  # half of the time that reading a file with decorated tasks takes

import airflow_provider.decorators.batch
import airflow_provider.decorators.kinetic
import airflow_provider.ending
import airflow_provider.hooks.kinetic
import airflow_provider.job_of_task
import airflow_provider.triggers.batch
import airflow_provider.triggers.kinetic
import kinetic_core.backends.kubernetes.backend
import kinetic_core.backends.kubernetes.connection
import kinetic_core.backends.local.backend
import kinetic_core.store.gcs

"""Where Airflow keeps its logs in Cloud Storage: pods then write theirs beside the task's own log.

Airflow's log server shows all objects whose names begin with that of a try's log, of deferred tasks too
(`FileTaskHandler._read`, `GCSRemoteLogIO.stream`), so what a pod prints is seen while it runs, and is no
business of the triggerer's. See `kinetic_core._runner.task_log` for what the pod writes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from kinetic_core.configuration import read_settings
from kinetic_core.errors import KineticError
from kinetic_core.model.job import JobReference
from kinetic_core.storage.gcs import GcsObjectStore

VARIABLE = "KINETIC_TASK_LOG"
"""What tells the runner where."""
_SCHEME = "gs://"
_SUFFIX = ".kinetic"
_LOG = logging.getLogger(__name__)

Shown = dict[tuple[int, int], int]
"""By attempt and host: how many bytes of its log are in the task's log already."""


@dataclass(frozen=True)
class RemoteLog:
    """The log of one try of a task instance: `uri` is what the names of its pods' pieces begin with."""

    uri: str

    def shown(self, reference: JobReference) -> Shown:
        """What the job's pods have written there, without gaps; nothing if this process may not look."""
        folder, _, name = self.uri.removeprefix(_SCHEME).rpartition("/")
        prefix = f"{name}.{reference.job_id}."
        found: Shown = {}
        try:
            store = GcsObjectStore.at(folder, read_settings())
            for info in sorted(store.list(prefix), key=lambda each: each.name):
                attempt, host, start, end = _span(info.name.removeprefix(prefix))
                if found.get((attempt, host), 0) == start:
                    found[attempt, host] = end
        except (KineticError, ValueError) as error:
            _LOG.info("what the pods have written to %s* cannot be seen: %s", self.uri, error)
        return found


def remote_log(context: Any) -> RemoteLog | None:
    """That of this try; None if Airflow's logs are not kept in Cloud Storage."""
    from airflow.providers.common.compat.sdk import conf

    base = conf.get("logging", "remote_base_log_folder", fallback="") or ""
    if not conf.getboolean("logging", "remote_logging", fallback=False) or not base.startswith(_SCHEME):
        return None
    return RemoteLog(f"{base.rstrip('/')}/{_file_name(conf, context)}{_SUFFIX}")


def _file_name(conf: Any, context: Any) -> str:
    """As `FileTaskHandler` names a try's log below the folder."""
    from jinja2 import Template

    ti = context["ti"]
    template = conf.get("logging", "log_filename_template")
    rendered: str = Template(template).render(**{**context, "ti": ti, "try_number": ti.try_number})
    return rendered


def _span(name: str) -> tuple[int, int, int, int]:
    """Attempt, host, first byte and the one after the last of `{attempt}-{host}-{from}-{to}.log`."""
    attempt, host, start, end = (int(part) for part in name.removesuffix(".log").split("-"))
    return attempt, host, start, end

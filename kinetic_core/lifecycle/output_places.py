"""Where a job's outputs go: `KINETIC_OUTPUT_DIR` as the job sees it."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlparse

from kinetic_core._runner.wire import outputs_prefix
from kinetic_core.configuration import Settings
from kinetic_core.lifecycle.options import RunOptions


def asked_output_dir(options: RunOptions, settings: Settings) -> str | None:
    """Where the user wants outputs; a relative path is one of this process's, for a job has another."""
    asked = options.output_dir or settings.output_dir
    if asked is None or "://" in asked:
        return asked
    return os.path.abspath(os.path.expanduser(asked))  # noqa: PTH100, PTH111  resolve() would follow links


def output_dir(asked: str | None, store_uri: str, job_id: str, index: int | None) -> str:
    """As asked, else a place of the job's own; a batch's jobs, which have an `index`, never share one."""
    if asked is not None:
        return asked if index is None else f"{asked.rstrip('/')}/{index}"
    uri = f"{store_uri}/{outputs_prefix(job_id)}"
    return unquote(urlparse(uri).path) if uri.startswith("file://") else uri

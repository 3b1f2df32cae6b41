"""All batches of a store."""

from __future__ import annotations

import json
import logging
from typing import Any

from kinetic_core.batch.names import finished_object, manifest_object
from kinetic_core.errors import StoreError
from kinetic_core.lifecycle.backends import Backend

_LOG = logging.getLogger(__name__)


def batches(backend: Backend) -> list[dict[str, Any]]:
    """What each batch's manifest says, newest first; one that cannot be read is left out with a warning.

    `group_id`, `name`, `function`, `inputs`, `created_at` (Unix seconds), `submitted`.
    """
    store = backend.store
    over = {info.name for info in store.list("batches/", finished_object("*"))}
    found = []
    for info in store.list("batches/", manifest_object("*")):
        try:
            manifest = json.loads(store.read(info.name))
            found.append({
                "group_id": manifest["group_id"],
                "name": manifest.get("group_name"),
                "function": manifest["submit_fn_name"],
                "inputs": int(manifest["total_expected"]),
                "created_at": float(manifest["created_at"]),
                "submitted": finished_object(manifest["group_id"]) in over,
            })  # fmt: skip
        except (StoreError, ValueError, KeyError, TypeError) as exc:
            _LOG.warning("leaving %s out of the list: %r", info.name, exc)
    return sorted(found, key=lambda one: -one["created_at"])

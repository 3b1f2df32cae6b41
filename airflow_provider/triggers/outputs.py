"""Trigger of an asset watcher: an event for each job that has succeeded and stored outputs."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any, Unpack

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_provider.access import Access, GoogleKeywords
from airflow_provider.config import config
from airflow_provider.deployment import NAME, deployment_name
from airflow_provider.threads import in_thread
from airflow_provider.triggers.base import asked
from kinetic_core.backends.base import Backend, known_backend
from kinetic_core.connections import Connections
from kinetic_core.errors import ConfigurationError, InvalidRequest
from kinetic_core.jobs.outputs_watcher import OutputsWatcher, RecentEntries, StoredOutputs

_LONGEST = 200
_ANSWERS = 3
"""Answers of Airflow, each to a later question, after which an event is certainly in its database: the
triggerer's main process may read the event after the first, together with the second question, and stores
it before it reads the third."""


class KineticOutputsTrigger(BaseEventTrigger):
    """Trigger that sends an event for each job of a function that has succeeded and stored outputs.

        models = Asset(
            "kinetic://models",
            watchers=[AssetWatcher(name="trained", trigger=KineticOutputsTrigger(function="train"))],
        )

    The job may have been started anywhere: by a script, the command or a task. `function` is its function's
    name, as `kinetic jobs list` shows it. At least one of its outputs must match `pattern`, a shell pattern
    in which `*` also matches `/`. Inputs of batches send no events. `conn_id`, `gcp_conn_id` and
    `impersonation_chain` say where jobs are, as in KineticOperator.

    An event's payload has `job_id`, `function`, `uri` (directory of the outputs), `names` (of the first 100
    that match), `more` (whether there are more) and `finished_at` (Unix seconds). Each job is told at least
    once, and again only if the triggerer dies right afterwards. Watchers of several assets that are equal in
    everything else need a different `name` each. Raises InvalidRequest for an argument that cannot work.
    """

    answer_interval = 3.0
    """Seconds before each question that shows whether events have arrived."""

    def __init__(
        self,
        function: str,
        pattern: str = "*",
        conn_id: str | None = None,
        name: str = "",
        **google: Unpack[GoogleKeywords],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow's is not annotated
        self.function = _text("function", function, "the name of a function, such as 'train'")
        self.pattern = _text("pattern", pattern, "a shell pattern, such as '*.ckpt'")
        if pattern.startswith("/"):
            raise InvalidRequest(f"pattern={pattern!r} never matches: outputs have relative names")
        self.name = name and _text("name", name, "a text that tells equal watchers apart")
        self.access = Access.of(conn_id, **google)
        self._trouble = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and arguments with which a triggerer makes this trigger."""
        own = {"function": self.function, "pattern": self.pattern, "name": self.name}
        return f"{type(self).__module__}.{type(self).__qualname__}", {**own, **self.access.to_dict()}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look for jobs again and again, and yield an event for each. Never ends: an outage is waited for."""
        watcher: OutputsWatcher | None = None
        store_uri = ""
        told: list[StoredOutputs] = []
        while True:
            interval = config().outputs_poll_interval
            try:
                backend, entries = await in_thread(_place, await self._connections())
                if watcher is None or backend.store.uri != store_uri:
                    watcher, store_uri, told = await self._watcher(), backend.store.uri, []
                while told:
                    await in_thread(watcher.settle, backend, told[-1])
                    told.pop()
                told = await in_thread(watcher.look, backend, entries, interval / 2)
                self._note("")
            except Exception as error:  # noqa: BLE001  a watcher that ends would be started again at once
                self._note(str(error) or repr(error))
                await asyncio.sleep(config().outage_interval)
                continue
            for each in told:
                self.log.info("%s has stored %s", each.job_id, ", ".join(each.names[:3]))
                yield TriggerEvent(each.to_dict())  # type: ignore[no-untyped-call]  # Airflow's is not annotated
            await (self._arrival() if told else asyncio.sleep(interval))

    async def _arrival(self) -> None:
        """Wait until the events that were sent have certainly arrived in Airflow's database."""
        answers = 0
        while answers < _ANSWERS:
            await asyncio.sleep(self.answer_interval)
            answers += bool(await asked(deployment_name))

    async def _connections(self) -> Connections:
        """Return the client of the connection, which triggers of this process share."""
        from airflow_provider.hooks.kinetic import clients

        return await asked(clients.get, self.access)

    async def _watcher(self) -> OutputsWatcher:
        """Return a watcher that goes on where that of an earlier triggerer of this Airflow has ended.

        Raises ConfigurationError while the name of this Airflow cannot be read.
        """
        deployment = await asked(deployment_name, make=True)
        if not deployment:
            raise ConfigurationError(f"Airflow's Variable {NAME!r} can be neither read nor made")
        who = json.dumps([deployment, self.function, self.pattern, self.name, self.access.to_dict()])
        return OutputsWatcher(self.function, self.pattern, hashlib.sha256(who.encode()).hexdigest()[:32])

    def _note(self, trouble: str) -> None:
        """Log an outage once, and its end."""
        if trouble and not self._trouble:
            self.log.warning("no outputs of %s are told for now, trying again: %s", self.function, trouble)
        elif self._trouble and not trouble:
            self.log.info("outputs of %s are told again", self.function)
        self._trouble = trouble


def _text(argument: str, value: str, what: str) -> str:
    if not isinstance(value, str) or not value or len(value) > _LONGEST or not value.isprintable():
        raise InvalidRequest(f"{argument}={value!r} must be {what}, of at most {_LONGEST} characters")
    return value


def _place(connections: Connections) -> tuple[Backend, RecentEntries]:
    """Return the backend of a connection's jobs, and its entries, one for all watchers of the place."""
    backend = connections.get((known_backend, connections.settings), lambda: known_backend(None, connections))
    return backend, connections.get((RecentEntries, backend.store.uri), RecentEntries)

"""Which task instance asked for a job: the job itself carries it, for when nobody else knows any more."""

from __future__ import annotations

import json
import logging
import uuid
from dataclasses import asdict, dataclass
from typing import Any, Self

from airflow_provider.identity import TaskIdentity

VARIABLE = "kinetic_deployment"
"""The Airflow Variable by which jobs of several Airflows in one namespace are told apart."""
_MEANING = "Tells this Airflow's Kinetic jobs from those of others; made by the first of them"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Origin:
    """A task instance, `map_index` -1 for one that is not mapped, of the Airflow `deployment`."""

    deployment: str
    dag_id: str
    run_id: str
    task_id: str
    map_index: int

    @classmethod
    def of(cls, identity: TaskIdentity, deployment: str) -> Self:
        """Of any of its tries."""
        return cls(deployment, identity.dag_id, identity.run_id, identity.task_id, identity.map_index)

    @property
    def key(self) -> str:
        """Its name among the states of its DAG run, as Airflow's `get_task_states` makes it."""
        return self.task_id if self.map_index < 0 else f"{self.task_id}_{self.map_index}"

    def to_text(self) -> str:
        """For the job's annotation."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """None for what is not written by `to_text`: whoever may create jobs may annotate them."""
        try:
            told: dict[str, Any] = json.loads(text)
            found = cls(**told)
        except (TypeError, ValueError):
            return None
        texts = (found.deployment, found.dag_id, found.run_id, found.task_id)
        sound = all(isinstance(each, str) for each in texts) and isinstance(found.map_index, int)
        return found if sound else None


def deployment(*, make: bool = False) -> str:
    """This Airflow's name, from its Variable and its address; "" if it has none, or does not say.

    With `[api] base_url`: a copy of the metadata database, made for a test of an upgrade, has the same
    Variable, and other tasks. `make` gives it a name. Of two workers that do so at once one is not obeyed;
    its job is then nobody's, which means that only a worker or a trigger of its own ends it.
    """
    from airflow.providers.common.compat.sdk import conf
    from airflow.sdk import Variable

    try:
        found = Variable.get(VARIABLE, default=None)
        if found is None and make:
            Variable.set(VARIABLE, uuid.uuid4().hex, _MEANING)
            found = Variable.get(VARIABLE, default=None)
    except Exception as error:  # noqa: BLE001  whatever Airflow answers, it is no reason not to run a job
        _LOG.info("no job of a forgotten task will be found: the Variable %r fails: %r", VARIABLE, error)
        return ""
    return f"{found} {conf.get('api', 'base_url', fallback='')}".strip() if found else ""

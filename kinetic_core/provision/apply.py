"""Carrying a plan out. Each step is brought about, not only sent: what is there decides, so that an answer
that was lost, a process that was killed and somebody else's doing the same all lead to the same end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from kinetic_core.errors import (
    CloudError,
    CloudUnreachable,
    ConfigurationError,
    KineticError,
    ProvisioningError,
)
from kinetic_core.provision.add_ons import AddOnReady, add_on_of, left_alone, objects_of
from kinetic_core.provision.cloud import Cloud
from kinetic_core.provision.inventory import read_room
from kinetic_core.provision.plan import Action, Step, no_room
from kinetic_core.provision.prepare import Prepared
from kinetic_core.provision.project import COMPUTE, Services
from kinetic_core.provision.resources import Found as There
from kinetic_core.provision.resources import Json, Request, Resource
from kinetic_core.provision.specification import Wanted
from kinetic_core.provision.vendored import AddOn
from kinetic_core.retry import pauses

PATIENCE = 120.0
"""Seconds for which one step is tried again after failures that pass."""
_READERS = 8
Say = Callable[[str], None]


def apply(cloud: Cloud, prepared: Prepared, say: Say) -> None:
    """Do the steps, one after another; `say` hears of each.

    Raises ProvisioningError, naming what is left, at the first that fails. The same plan, made and carried
    out again, continues there.
    """
    todo = [step for step in prepared.steps if step.acts]
    others = _Others(cloud, say)
    done = 0
    for number, step in enumerate(todo, start=1):
        try:
            if not others.have(step.resource):
                say(f"[{number}/{len(todo)}] {step}")
                _Effort(cloud, step).bring_about(prepared.found.resources.get(str(step.resource)))
            done = number
            _check_room(cloud, step, todo[done:], prepared.wanted)
        except KeyboardInterrupt:
            say(f"interrupted at: {step}. What was begun goes on; the same command continues")
            raise
        except KineticError as exc:
            left = "; ".join(str(each) for each in todo[done:])
            raise ProvisioningError(
                f"{step}: {exc}. Done: {done} of {len(todo)} steps. Not done: {left}. "
                "The same command, when the cause is gone, continues here"
            ) from exc


def _check_room(cloud: Cloud, step: Step, rest: Sequence[Step], wanted: Wanted) -> None:
    """Raise ConfigurationError if the step has enabled Compute Engine, which could not be asked before the
    first step, and it says that a pool cannot have its machines. Nothing that costs has been made by then.
    """
    enables = isinstance(step.resource, Services) and (not step.details or COMPUTE in step.details)
    if not enables:
        return
    told = no_room(read_room(cloud, wanted, [each.resource for each in rest], PATIENCE), wanted)
    if told:
        raise ConfigurationError(f"that is done, and now Compute Engine says: {'; '.join(told)}")


class _Others:
    """Add-ons that somebody else has installed. They are looked for before the first step of each, as nobody
    could look while there was no cluster.
    """

    def __init__(self, cloud: Cloud, say: Say) -> None:
        self._cloud, self._say = cloud, say
        self._left: dict[AddOn, bool] = {}

    def have(self, resource: Resource) -> bool:
        """Whether the resource is part of such a one; says so once."""
        add_on = add_on_of(resource)
        if add_on is None:
            return False
        if add_on not in self._left:
            parts = (*objects_of(add_on), AddOnReady(add_on))
            with ThreadPoolExecutor(_READERS) as pool:
                found = pool.map(self._cloud.read, [each.reading for each in parts])
                why = left_alone(parts, dict(zip(map(str, parts), found, strict=True)))
            self._left[add_on] = add_on in why
            if add_on in why:
                self._say(f"{add_on}: {why[add_on]}")
        return self._left[add_on]


class _Effort:
    """One step."""

    def __init__(self, cloud: Cloud, step: Step) -> None:
        self._cloud, self._step, self._resource = cloud, step, step.resource
        self._pauses = pauses(0.5, 10.0)
        self._give_up = cloud.clock() + PATIENCE
        self._give_up_waiting = cloud.clock() + self._resource.longest

    def bring_about(self, found: There | None) -> None:
        """What the plan knows is good for one try. After it, and where it is busy, what is there is read."""
        unsure = self._resource.reads_first or (found is not None and self._resource.busy(found))
        while True:
            try:
                now = self._settled() if unsure else found
                for request in self._requests(now):
                    self._cloud.do(request)
                if self._is_done():
                    return
            except CloudError as exc:
                if not self._is_gone(exc) and not self._passes(exc):
                    raise
            self._wait()
            unsure = True

    def _requests(self, found: There | None) -> tuple[Request, ...]:
        resource, action = self._resource, self._step.action
        if action is Action.DELETE:
            return resource.removal(found) if found is not None and resource.mine(found) else ()
        if found is None and resource.reads_first:
            raise CloudUnreachable(f"{resource.name} is not there (yet)")
        if found is None:
            return resource.creation()
        if not resource.usable(found) and action is not Action.CHANGE:
            raise ConfigurationError(
                f"{resource} was created by somebody else after the plan was made: run the command again"
            )
        if resource.broken(found):
            return (*resource.removal(found), *resource.creation())
        return resource.changes(found)

    def _settled(self) -> Json | None:
        """What is there, once nobody is at work on it."""
        while True:
            found = self._cloud.read(self._resource.reading)
            if found is None or not self._resource.busy(found):
                return found
            if self._cloud.clock() > self._give_up_waiting:
                raise CloudError(self._resource.stuck(found))
            self._wait()

    def _wait(self) -> None:
        self._cloud.sleep(next(self._pauses))

    def _is_done(self) -> bool:
        """What has been removed is looked for, as some of it takes its time."""
        if self._step.action is not Action.DELETE or self._settled() is None:
            return True
        if self._cloud.clock() > self._give_up:
            raise CloudError(f"{self._resource} is still there")
        return False

    def _is_gone(self, exc: CloudError) -> bool:
        """Whether somebody says so: then that is looked at."""
        gone = self._step.action is Action.DELETE and exc.status == 404
        return gone and self._cloud.clock() < self._give_up

    def _passes(self, exc: CloudError) -> bool:
        """Whether looking again, and then perhaps another try, may help."""
        now = self._cloud.clock()
        if exc.reason == "OPERATION_FAILED":  # which the service has tried for long already
            return False
        if exc.reason == "FAILED_PRECONDITION" and "operation" in str(exc):
            return now < self._give_up_waiting
        late = exc.reason == "SERVICE_DISABLED" or _not_yet_known(exc)
        stale = exc.status in (409, 412)
        return (isinstance(exc, CloudUnreachable) or late or stale) and now < self._give_up


def _not_yet_known(exc: CloudError) -> bool:
    """An account or identity that was made a moment ago, and that IAM has not heard of everywhere."""
    return exc.status == 400 and "does not exist" in str(exc)

"""The verbs of provisioning in tests, and the faults that they meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kinetic_core.provision.prepare import Prepared
from kinetic_core.provision.project import Bucket
from kinetic_core.testing.faulty_server import Act, Fault, Faults
from tests.provision.worlds import WANTED, World

Verb = Callable[[World], Prepared]
SMALL = replace(WANTED, pools=WANTED.pools[:1])
ONE_MORE = replace(WANTED, namespaces=(replace(WANTED.namespaces[0], name="vision"),))

VERBS: dict[str, tuple[Verb | None, Verb]] = {
    "up": (None, World.up),
    "pool add": (lambda world: world.up(SMALL), World.pool_add),
    "namespace add": (World.up, lambda world: world.namespace_add(ONE_MORE)),
    "down": (lambda world: used(world), World.down),
}
"""By name, what there is before, and the verb itself."""
FAULTS = {
    "403": Fault("", Act.ANSWER, None, status=403),
    "404": Fault("", Act.ANSWER, None, status=404),
    "409": Fault("", Act.ANSWER, None, status=409),
    "429": Fault("", Act.ANSWER, None, status=429),
    "500": Fault("", Act.ANSWER, None, status=500),
    "no answer": Fault("", Act.DROP, None),
    "lost reply": Fault("", Act.LOSE_REPLY, None),
    "times out": Fault("", Act.SILENCE, None),
}
DONE_ALL_THE_SAME = ("lost reply", "times out")


def used(world: World) -> Prepared:
    """A cluster that people have used: there is something in its buckets."""
    made = world.up()
    for use in ("jobs", "builds"):
        world.project.objects[f"my-project-kn-training-{use}"] = ["ml/outputs/x", "source/y"]
    return made


def before(world: World, name: str) -> Verb:
    first, verb = VERBS[name]
    if first is not None:
        first(world)
    return verb


def steps_of(world: World, name: str) -> list[str]:
    """The requests with which the verb changes something."""
    verb = before(world, name)
    world.project.faults, world.cluster.faults = Faults(), Faults()
    made = verb(world)
    lines = world.mutations()
    assert lines
    acting = [step for step in made.steps if step.acts and not step.resource.only_waits]
    emptied = [step for step in acting if step.action == "delete" and isinstance(step.resource, Bucket)]
    assert len(lines) == len(acting) + len(emptied)
    return lines


def both(world: World) -> tuple[Faults, Faults]:
    return world.project.faults, world.cluster.faults

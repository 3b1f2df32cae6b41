"""What a person sees before being asked whether to go on."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any, cast

from kinetic_core.cli.output import Output
from kinetic_core.cli.plans import carry_out
from kinetic_core.provision.prepare import prepare_down
from tests.provision.worlds import WANTED, World


def test_what_will_be_removed_is_shown_before_the_question(world: World) -> None:
    world.up()
    out = io.StringIO()
    session = cast("Any", SimpleNamespace(output=Output(stream=out)))
    cloud = world.cloud
    prepared = prepare_down(cloud, WANTED)
    shown: list[str] = []

    def refuse(_question: str) -> bool:
        shown.append(out.getvalue())
        return False

    assert not carry_out(session, cloud, prepared, only_plan=False, yes=False, agreed=refuse)
    assert "delete" in shown[0]
    assert "training" in shown[0]

"""The IAM condition that the guide gives for Airflow's log bucket, evaluated for what pods write."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.bucket_policy import BucketPolicy

pytestmark = pytest.mark.attack
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "provisioning.md"
LOGS = "logs/dag_id={dag_id}/run_id=manual__2026-01-01T00:00:00+00:00/task_id=train"
"""Folder of a task's logs, as Airflow names it below `remote_base_log_folder`."""
PIECE = "attempt=1.log.kinetic.job-0123456789abcdef.0-0-0-120.log"
"""Object of a pod: the lines up to byte 120 of the first attempt."""
PAGE = GUIDE.read_text()


def guide_policy() -> tuple[BucketPolicy, str]:
    """The policy after the guide's command, and the member that it names."""
    command = re.search(r"```bash\n(gcloud storage buckets add-iam-policy-binding .*?)\n```", PAGE, re.DOTALL)
    assert command is not None
    words = shlex.split(command[1].replace("\\\n", " "))
    given = dict(zip(words[5::2], words[6::2], strict=True))
    title, _, expression = given["--condition"].partition(",expression=")
    assert title == "title=vision"
    member = given["--member"]
    binding = {"role": given["--role"], "members": [member], "condition": {"expression": expression}}
    return BucketPolicy(words[4].removeprefix("gs://"), [binding]), member


def piece(dag_id: str) -> str:
    return f"{LOGS.format(dag_id=dag_id)}/{PIECE}"


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        (piece("vision_train"), True),
        (piece("vision_"), True),
        (piece("vision"), False),
        (piece("speech_train"), False),
        (piece("my_vision_train"), False),
        (f"other/{piece('vision_train')}", False),
        ("logs/dag_processor/vision_train.log", False),
        ("logs/", False),
        ("", False),
    ],
)
def test_the_guides_condition_lets_pods_write_logs_only(name: str, allowed: bool) -> None:
    policy, member = guide_policy()
    assert policy.allows(member, "create", name) is allowed


@pytest.mark.parametrize("verb", ["get", "list", "update", "delete"])
def test_the_guides_role_neither_reads_nor_replaces_a_log(verb: str) -> None:
    policy, member = guide_policy()
    assert not policy.allows(member, verb, piece("vision_train"))


def test_pods_of_another_namespace_have_none_of_it() -> None:
    policy, member = guide_policy()
    other = member.replace("/ns/vision/", "/ns/speech/")
    assert other != member
    assert not policy.allows(other, "create", piece("vision_train"))

"""What the command does with Google credentials that are missing, have expired, or are never answered."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli.all_verbs import BATCH_VERBS, JOB_VERBS, all_verbs
from tests.cli.clusters import KUBECONFIG, NOBODY
from tests.conftest import wait_for
from tests.serving import Answering, serving

KINETIC = str(Path(sys.executable).with_name("kinetic"))
SAMPLE = str(Path(__file__).parent / "project" / "cli_sample.py")
JOB, BATCH = "job-0123456789abcdef", "grp-0123456789abcdef"
ASKING = (
    ("run", f"{SAMPLE}:scaled", "1"),
    ("shell", JOB),
    ("package", f"{SAMPLE}:scaled"),
    ("build-image",),
    ("reap",),
    ("cost", JOB),
    ("up", "--yes"),
    ("down", "--yes"),
    ("status",),
    ("init", "--yes"),
    ("pool", "add", "-a", "gpu-l4", "--yes"),
    ("pool", "update", "gpu-l4", "--max-nodes", "2", "--yes"),
    ("pool", "remove", "gpu-l4", "--yes"),
    ("pool", "list"),
    ("namespace", "add", "ml", "--yes"),
    ("namespace", "remove", "ml", "--yes"),
    ("namespace", "list"),
    ("warm", "list"),
    ("warm", "start", f"{SAMPLE}:scaled", "--warm", "1m"),
    ("warm", "stop", "--all"),
    ("accelerators", "--live"),
    ("doctor",),
    ("jobs", "list"),
    *(("jobs", verb, JOB) for verb in JOB_VERBS),
    ("batch", "list"),
    *(("batch", verb, BATCH) for verb in BATCH_VERBS),
)
"""A call of every verb that needs a cloud."""
_OTHER_CLOUDS = ("KUBECONFIG", "STORAGE_EMULATOR_HOST")
ALONE = {
    "config",
    "home",
    *(f"profile {verb}" for verb in ("create", "list", "show", "use", "remove")),
}
"""Those that need none; `home` says why it cannot ask one."""


def environment(folder: Path, port: int) -> dict[str, str]:
    """A project, and credentials for it whose tokens come from that port of this machine."""
    identity = folder / f"identity-{port}"
    identity.write_text("token")
    credentials = folder / f"credentials-{port}.json"
    fields = {
        "type": "external_account",
        "audience": "a",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "credential_source": {"file": str(identity)},
        "token_url": f"http://127.0.0.1:{port}/token",
    }
    credentials.write_text(json.dumps(fields))
    return {
        **{name: value for name, value in os.environ.items() if name not in _OTHER_CLOUDS},
        "GOOGLE_APPLICATION_CREDENTIALS": str(credentials),
        "KINETIC_BACKEND": "gke",
        "KINETIC_PROJECT": "my-project",
        "KINETIC_BUCKET": "b",
        "XDG_CACHE_HOME": str(folder / str(port)),
    }


@pytest.mark.promise("command: Every verb of the spec that is not provisioning, plus these")
def test_every_verb_is_here() -> None:
    named = {next(name for name in all_verbs() if " ".join(words).startswith(name)) for words in ASKING}
    assert named | ALONE == set(all_verbs())


def interrupted(words: Sequence[str], folder: Path) -> tuple[int, str]:
    """How a call ends that gets SIGINT while it waits for an answer: exit code and stderr."""
    pipe = subprocess.PIPE
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel connects, and nobody answers
        told_where = environment(folder, silent.getsockname()[1])
        with subprocess.Popen(
            [KINETIC, *words], env=told_where, stdout=pipe, stderr=pipe, text=True
        ) as process:
            wait_for(lambda: select.select([silent], [], [], 0)[0] or process.poll() is not None, 60)
            process.send_signal(signal.SIGINT)
            try:
                _, told = process.communicate(timeout=90)
            finally:
                process.kill()
    return process.returncode, told


@pytest.mark.promise("command: Ctrl-C during every verb")
@pytest.mark.slow
def test_ctrl_c_ends_every_verb_that_waits_for_an_answer(tmp_path: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        ends = list(pool.map(lambda words: interrupted(words, tmp_path), ASKING))
    wrong = {
        words: end
        for words, end in zip(ASKING, ends, strict=True)
        if end[0] != 130 or not end[1].endswith("interrupted\n") or "Traceback" in end[1]
    }
    assert not wrong


class Refusing(Answering):
    """Gives no tokens for credentials that have expired."""

    def do_POST(self) -> None:
        self.answer(
            400, {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}
        )


@pytest.mark.promise("command: no credentials, expired credentials")
@pytest.mark.parametrize("words", [("jobs", "status", JOB), ("status",)])
def test_credentials_that_are_no_use_are_named(words: tuple[str, ...], tmp_path: Path) -> None:
    with serving(Refusing) as place:
        expired = environment(tmp_path, int(place.rpartition(":")[2]))
        absent = {**expired, "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "absent.json")}
        for told_where, said in ((expired, "expired or revoked"), (absent, "absent.json")):
            told = subprocess.run(
                [KINETIC, *words], env=told_where, capture_output=True, text=True, check=False
            )
            assert (told.returncode, told.stdout) == (2, "")
            assert said in told.stderr or told_where is absent
            assert "gcloud auth application-default login" in told.stderr
            assert "Traceback" not in told.stderr


@pytest.mark.promise("command: … < 5 s without the job")
@pytest.mark.parametrize("of_gke", [True, False])
def test_doctor_ends_though_nobody_answers(of_gke: bool, tmp_path: Path) -> None:
    """Neither the cluster nor Google. Without its limit, or if its threads kept it, it would take minutes."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(KUBECONFIG.replace(NOBODY, f"http://127.0.0.1:{port}"))
        asked = environment(tmp_path, port)
        if not of_gke:
            asked |= {"KINETIC_KUBECONFIG": str(kubeconfig), "KINETIC_CONTAINER_IMAGE": "python:3.12"}
        done = subprocess.run(
            [KINETIC, "doctor", "--timeout", "0.5"],
            env=asked,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 5, done.stdout + done.stderr
    assert "no answer within 0.5 s" in done.stdout


@pytest.mark.promise("command: no credentials, expired credentials")
@pytest.mark.parametrize("words", [("doctor", "--timeout", "60"), ("run", f"{SAMPLE}:scaled", "1")])
def test_credentials_that_are_absent(words: tuple[str, ...], tmp_path: Path) -> None:
    """With a cluster that needs none, so that the bucket alone asks for them."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    asked = {
        **environment(tmp_path, 1),
        "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "absent.json"),
        "KINETIC_KUBECONFIG": str(kubeconfig),
        "KINETIC_CONTAINER_IMAGE": "python:3.12",
    }
    done = subprocess.run([KINETIC, *words], env=asked, capture_output=True, text=True, check=False)
    told = done.stdout + done.stderr
    assert done.returncode == (5 if words[0] == "doctor" else 2), told
    assert "gcloud auth application-default login" in told
    for unhelpful in ("the check itself failed", "report it", "Traceback"):
        assert unhelpful not in told

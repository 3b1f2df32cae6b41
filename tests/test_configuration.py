"""Settings come from the environment given, are checked, and leave it alone."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic_core.errors import ConfigurationError
from kinetic_core.settings import log_level, login_name, read_settings


def test_defaults(tmp_path: Path) -> None:
    settings = read_settings({"KINETIC_PROFILES_FILE": str(tmp_path / "none.json")})
    assert settings.backend is None
    assert (settings.zone, settings.cluster, settings.namespace) == (
        "us-central1-a",
        "kinetic-cluster",
        "default",
    )
    assert settings.local_store.is_absolute()
    assert settings.default_excludes


def test_variables(tmp_path: Path) -> None:
    settings = read_settings(
        {
            "KINETIC_PROFILES_FILE": str(tmp_path / "none.json"),
            "KINETIC_BACKEND": "local",
            "KINETIC_LOCAL_STORE": "/tmp/here/../there",
            "XDG_CACHE_HOME": "/cache",
            "GOOGLE_CLOUD_PROJECT": "fallback",
            "KINETIC_NO_DEFAULT_EXCLUDES": "1",
            "KINETIC_CONTEXT_SIZE_WARN_MB": "0",
            "KINETIC_PAYLOAD_SIZE_WARN_MB": "1.5",
            "KINETIC_DEBUG_PORT": "5679",
            "KINETIC_DEBUG_WAIT_TIMEOUT": "1.5",
            "KINETIC_NO_TTY_DEBUG": "1",
        }
    )
    assert settings.backend == "local"
    assert settings.local_store == Path("/tmp/there")
    assert settings.cache == Path("/cache/kinetic")
    assert settings.project == "fallback"
    assert not settings.default_excludes
    assert (settings.project_warn_bytes, settings.payload_warn_bytes) == (0, 3 << 19)
    assert (settings.debug_port, settings.debug_wait, settings.debug_without_tty) == (5679, 1.5, True)


def test_the_user_is_the_login_or_else_whose_process_it_is(tmp_path: Path) -> None:
    nowhere = {"KINETIC_PROFILES_FILE": str(tmp_path / "none.json")}
    named = {**nowhere, "USER": "bob", "LOGNAME": "ada"}
    assert [read_settings(each).user for each in (named, {**named, "LOGNAME": ""})] == ["ada", "bob"]
    here = read_settings(nowhere)
    assert here.user == pwd.getpwuid(os.getuid()).pw_name
    assert here.origin("user") == "the password database"
    assert login_name(2**31 - 7) == ""


DOCUMENTED = Path(__file__).parents[1] / "docs" / "reference" / "configuration.md"
READ_ELSEWHERE = {"KINETIC_PROFILE", "KINETIC_PROFILES_FILE", "KINETIC_LOG_LEVEL"}


@pytest.mark.promise("gke: Four variables run the same script on any cluster")
def test_every_documented_variable_is_a_setting(tmp_path: Path) -> None:
    told = set(re.findall(r"`(KINETIC_\w+)`", DOCUMENTED.read_text().partition("## In the job")[0]))
    values = {name: "local" if name == "KINETIC_BACKEND" else "1" for name in told - READ_ELSEWHERE}
    read = read_settings({"KINETIC_PROFILES_FILE": str(tmp_path / "none.json"), **values})
    assert len(values) > 15
    assert set(read.origins.values()) == values.keys()
    assert read.base_image_repo == "1"


@pytest.mark.parametrize(("level", "shown"), [("INFO", "said\n"), ("ERROR", ""), ("", "")])
def test_the_log_level_counts_in_scripts(level: str, shown: str) -> None:
    script = (
        "import logging, kinetic_core;"
        "kinetic_core.default_client();"
        "from kinetic_core.connections import default_connections as made; made();"
        "logging.getLogger('kinetic_core.jobs').info('said')"
    )
    environ = {**os.environ, "KINETIC_LOG_LEVEL": level}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stderr == shown


def test_a_program_with_a_log_of_its_own_keeps_it() -> None:
    script = (
        "import logging, kinetic_core; logging.basicConfig(level='DEBUG', format='own %(message)s');"
        "from kinetic_core.connections import default_connections as made; made();"
        "logging.getLogger('kinetic_core.jobs').info('quiet');"
        "logging.getLogger('kinetic_core.jobs').warning('said')"
    )
    environ = {**os.environ, "KINETIC_LOG_LEVEL": "WARNING"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stderr == "own said\n"


def test_the_log_level_is_a_name() -> None:
    assert (log_level({}), log_level({"KINETIC_LOG_LEVEL": "fatal"})) == (20, 50)
    assert log_level({"KINETIC_LOG_LEVEL": "verbose"}) == 20


def test_another_word_for_the_log_level_is_told_of() -> None:
    script = (
        "import logging;"
        "from kinetic_core.connections import default_connections as made; made();"
        "logging.getLogger('kinetic_core.jobs').info('said')"
    )
    environ = {**os.environ, "KINETIC_LOG_LEVEL": "verbose"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True
    )
    warning, line = done.stderr.splitlines()
    assert warning.startswith("KINETIC_LOG_LEVEL='verbose' counts as INFO: it is not one of DEBUG, INFO")
    assert line == "said"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KINETIC_BACKEND", "slurm"),
        ("KINETIC_CONTEXT_SIZE_WARN_MB", "lots"),
        ("KINETIC_CONTEXT_SIZE_WARN_MB", "inf"),
        ("KINETIC_CONTEXT_SIZE_WARN_MB", "1e308"),
        ("KINETIC_PAYLOAD_SIZE_WARN_MB", "nan"),
        ("KINETIC_PAYLOAD_SIZE_WARN_MB", "-1"),
        ("KINETIC_NO_DEFAULT_EXCLUDES", "yes"),
        ("KINETIC_NO_TTY_DEBUG", "2"),
        ("KINETIC_DEBUG_PORT", "1.5"),
        ("KINETIC_DEBUG_PORT", "65536"),
        ("KINETIC_DEBUG_WAIT_TIMEOUT", "nan"),
    ],
)
def test_an_unusable_value_names_its_variable(name: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=name):
        read_settings({name: value, "KINETIC_PROFILES_FILE": str(tmp_path / "none.json")})


@pytest.mark.parametrize(
    ("text", "is_on"), [("1", 1), ("True", 1), ("t", 1), ("0", 0), ("false", 0), ("F", 0)]
)
def test_a_switch_has_airflows_words(text: str, is_on: bool, tmp_path: Path) -> None:
    nowhere = {"KINETIC_PROFILES_FILE": str(tmp_path / "none.json")}
    read = read_settings({**nowhere, "KINETIC_NO_DEFAULT_EXCLUDES": text, "KINETIC_NO_TTY_DEBUG": text})
    assert (not read.default_excludes, read.debug_without_tty) == (is_on, is_on)
    stated = read_settings(nowhere, {"default_excludes": text, "debug_without_tty": text}, "Client")
    assert (stated.default_excludes, stated.debug_without_tty) == (is_on, is_on)

"""Kubeconfigs: those that are read without the `kubernetes` package mean what they mean to the package."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target, connection
from kinetic_core.backends.kubernetes.kubeconfig import read_access
from kinetic_core.backends.kubernetes.streams import open_stream
from kinetic_core.connections import Connections
from kinetic_core.errors import ClusterUnreachable, ConfigurationError
from kinetic_core.settings import Settings
from tests.serving import Answering, serving

CERTIFICATES = Path(__file__).parent / "certificates"
NAME = "api.test"
"""Name in the server's certificate, which its address is not."""
TRUSTED = {"certificate-authority": f"{CERTIFICATES}/authority.crt", "tls-server-name": NAME}
KNOWN_USER = {"client-certificate": f"{CERTIFICATES}/user.crt", "client-key": f"{CERTIFICATES}/user.key"}
PLUGIN = {
    "exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "/bin/gke-gcloud-auth-plugin"}
}
PROGRAM = """
import sys
from kinetic_core.backends.kubernetes.client import ClusterApi
from kinetic_core.backends.kubernetes.connection import Target
print(ClusterApi(Target(sys.argv[1])).version(), "kubernetes" in sys.modules)
"""
Seen = list[tuple[str, str]]
_UNTRUSTED = "certificate verify failed|doesn't match"
"""What an error says, with urllib3 1.26 the latter."""
NOT_TRUSTED = pytest.mark.parametrize(
    "cluster",
    [{}, {"certificate-authority": TRUSTED["certificate-authority"]}, {"tls-server-name": NAME}],
    ids=["neither", "another name", "unknown authority"],
)


def data(name: str) -> str:
    return base64.b64encode((CERTIFICATES / name).read_bytes()).decode()


@pytest.fixture
def server() -> Iterator[tuple[str, Seen]]:
    """An API server's address, and who has asked it for its version: token, and name in the certificate."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(CERTIFICATES / "authority.crt"))
    tls.load_cert_chain(CERTIFICATES / f"{NAME}.crt", CERTIFICATES / f"{NAME}.key")
    tls.verify_mode = ssl.CERT_OPTIONAL
    seen: Seen = []

    class Version(Answering):
        def do_GET(self) -> None:
            shown = self.connection.getpeercert() or {}  # type: ignore[attr-defined]
            name = dict(pair for (pair,) in shown.get("subject", ())).get("commonName", "")
            seen.append((self.headers.get("Authorization", ""), name))
            self.answer(200, {"major": "1", "minor": "34"})

    with serving(Version, tls=tls) as place:
        yield f"https://{place}", seen


Write = Callable[[dict[str, Any], Any], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """`write(cluster, user)` writes a kubeconfig of two contexts, of which the current one is of these."""

    def write(cluster: dict[str, Any], user: Any) -> Path:
        content = {
            "clusters": [
                {"name": "c", "cluster": cluster},
                {"name": "d", "cluster": {"server": "http://d/"}},
            ],
            "users": [{"name": "u", "user": user}],
            "contexts": [
                {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "n"}},
                {"name": "there", "context": {"cluster": "d", "user": "u"}},
            ],
            "current-context": "here",
        }
        file = tmp_path / "kubeconfig"
        file.write_text(json.dumps(content))
        return file

    return write


@pytest.fixture(params=[True, False], ids=["read", "package"])
def more(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a cluster says beside the rest: nothing, or something that only the package knows to pass over."""
    return {} if request.param else {"disable-compression": True}


@pytest.mark.parametrize(
    ("cluster", "user", "seen"),
    [
        (TRUSTED, {"token": "t"}, ("Bearer t", "")),
        (TRUSTED, KNOWN_USER, ("", "user")),
        (
            {"certificate-authority-data": data("authority.crt"), "tls-server-name": NAME, "extensions": []},
            {"client-certificate-data": data("user.crt"), "client-key-data": data("user.key")},
            ("", "user"),
        ),
        (TRUSTED, {**KNOWN_USER, "token": "t"}, ("Bearer t", "user")),
        (TRUSTED, {"token": ""}, ("", "")),
        (TRUSTED, {}, ("", "")),
        ({"insecure-skip-tls-verify": True}, {"token": "t"}, ("Bearer t", "")),
    ],
    ids=["token", "files", "data", "both", "empty", "nobody", "unverified"],
)
@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_a_kubeconfig_means_what_it_does_to_the_package(
    server: tuple[str, Seen],
    write: Write,
    more: dict[str, Any],
    cluster: dict[str, Any],
    user: dict[str, Any],
    seen: tuple[str, str],
) -> None:
    file = write({"server": f"{server[0]}/", **cluster, **more}, user)
    assert (read_access(str(file)) is None) == bool(more)
    assert ClusterApi(Target(str(file))).version() == "1.34"
    assert server[1] == [seen]


@pytest.mark.attack
@NOT_TRUSTED
def test_a_server_that_is_not_trusted_gets_no_token(
    server: tuple[str, Seen], write: Write, more: dict[str, Any], cluster: dict[str, Any]
) -> None:
    file = write({"server": server[0], **cluster, **more}, {"token": "secret"})
    with pytest.raises(ConfigurationError, match=_UNTRUSTED):
        ClusterApi(Target(str(file)), patience=0.0).version()
    assert server[1] == []


@pytest.mark.attack
@NOT_TRUSTED
def test_nor_does_it_over_a_websocket(
    server: tuple[str, Seen], write: Write, more: dict[str, Any], cluster: dict[str, Any]
) -> None:
    target = Target(str(write({"server": server[0], **cluster, **more}, {"token": "secret"})))
    refused = ConfigurationError("not permitted")
    with pytest.raises(ClusterUnreachable, match=_UNTRUSTED):
        open_stream(target, Connections(Settings()), "/version", [], "v4.channel.k8s.io", refused)
    assert server[1] == []


def test_a_relative_name_is_one_beside_the_kubeconfig(server: tuple[str, Seen], write: Write) -> None:
    file = write({"server": server[0], **TRUSTED, "certificate-authority": "ca.crt"}, {"token": "t"})
    (file.parent / "ca.crt").write_bytes((CERTIFICATES / "authority.crt").read_bytes())
    assert read_access(str(file)) is not None
    assert ClusterApi(Target(str(file))).version() == "1.34"


def test_a_context_is_found_by_its_name(write: Write) -> None:
    file = write({"server": "https://c"}, PLUGIN)
    here, there = read_access(str(file)), read_access(str(file), "there")
    assert here is not None
    assert there is not None
    assert (here.host, there.host, here.is_google) == ("https://c", "http://d", True)


@pytest.mark.parametrize(
    ("cluster", "user"),
    [
        ({"proxy-url": "http://proxy"}, {}),
        ({}, {"exec": {"command": "aws"}}),
        ({}, {"tokenFile": "/token"}),
        ({}, {"username": "me", "password": "p"}),
        ({}, {"auth-provider": {"name": "oidc", "config": {}}}),
        ({}, {"token": "t", "as": "somebody"}),
        ({}, {"client-certificate": "/absent", "client-key": "/absent"}),
        ({}, {"client-certificate-data": "?", "client-key-data": None}),
        ({}, None),
        ({}, "me"),
    ],
)
def test_all_that_is_not_known_is_left_to_the_package(
    write: Write, cluster: dict[str, Any], user: Any
) -> None:
    assert read_access(str(write({"server": "https://c", **cluster}, user))) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "a: b", "!!python/object/apply:os.abort []"])
def test_a_file_that_is_no_kubeconfig_is_left_to_the_package(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    assert read_access(str(file)) is None
    assert read_access(f"{file}:{file}") is None


def test_a_certificate_without_its_key_is_said(write: Write) -> None:
    file = write({"server": "https://c"}, {"client-certificate-data": data("user.crt")})
    with pytest.raises(ConfigurationError, match=f"cannot connect with {file}"):
        ClusterApi(Target(str(file))).version()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_certificates_are_read_where_there_is_tls(write: Write, scheme: str) -> None:
    target = Target(str(write({"server": f"{scheme}://127.0.0.1:9"}, {"token": "t"})))
    known = connection(target, Connections(Settings())).tls().cert_store_stats()
    of_this_machine = ssl.create_default_context().cert_store_stats()
    assert known == (of_this_machine if scheme == "https" else {"x509": 0, "crl": 0, "x509_ca": 0})


@pytest.mark.parametrize("user", [{"token": "t"}, KNOWN_USER])
@pytest.mark.parametrize("without_proxy", ["", "*"])
def test_the_package_is_not_imported_for_a_plain_kubeconfig(
    server: tuple[str, Seen],
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    user: dict[str, Any],
    without_proxy: str,
) -> None:
    """A warm call from a new process took 0.2 s longer with it. NO_PROXY alone, often set, is no proxy."""
    monkeypatch.setenv("NO_PROXY", without_proxy)
    file = write({"server": server[0], **TRUSTED}, user)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(file)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1.34 False\n"


def test_the_package_is_asked_about_proxies(
    server: tuple[str, Seen], write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of the environment's it knows, and for which addresses it uses them, differs by version."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    file = write({"server": server[0], **TRUSTED}, {"token": "t"})
    told = subprocess.run([sys.executable, "-c", PROGRAM, str(file)], capture_output=True, check=True).stdout
    assert told == b"1.34 True\n"

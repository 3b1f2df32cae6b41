"""Imports of packages that threads need at the same time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: here
clusters: [{name: here, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: me, user: {tokenFile: /dev/null}}]
contexts: [{name: here, context: {cluster: here, user: me}}]
"""
CREDENTIALS = {
    "type": "external_account",
    "audience": "a",
    "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
    "credential_source": {"file": "/absent"},
    "token_url": "http://127.0.0.1:9/token",
}
TWO_THREADS = '''
import sys
import threading

from kinetic_core.backends.kubernetes.connection import Target, connection
from kinetic_core.connections import Connections
from kinetic_core.google_cloud import credentials
from kinetic_core.imports import Importing
from kinetic_core.settings import Settings

connections = Connections(Settings())


def find_credentials():
    credentials(connections, None)
    print("found")


def connect():
    connection(Target(sys.argv[1]), connections)
    print("connected")


def hold(event, arguments):
    """Where the first thread is in the middle of `requests`, the second imports until it waits for a lock."""
    if event == "import" and arguments[0] == "requests.exceptions" and not second.ident:
        second.start()
        while second.is_alive() and not waits(sys._current_frames().get(second.ident)):
            pass


def waits(frame):
    """Whether a thread waits: for the module, which the other has, or to begin with its imports."""
    waited_for = frame and frame.f_code.co_name in ("acquire", "__enter__") and frame.f_locals.get("self")
    return isinstance(waited_for, Importing) or getattr(waited_for, "name", "") == "requests"


first, second = threading.Thread(target=find_credentials), threading.Thread(target=connect)
sys.addaudithook(hold)
first.start()
first.join()
second.join()
'''


def test_threads_that_import_from_both_ends_get_whole_modules(tmp_path: Path) -> None:
    """`kubernetes` begins with a module of `requests`, google-auth with the package."""
    kubeconfig, credentials = tmp_path / "kubeconfig", tmp_path / "credentials.json"
    kubeconfig.write_text(KUBECONFIG)
    credentials.write_text(json.dumps(CREDENTIALS))
    done = subprocess.run(
        [sys.executable, "-c", TWO_THREADS, str(kubeconfig)],
        env={**os.environ, "GOOGLE_APPLICATION_CREDENTIALS": str(credentials)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.splitlines(), done.stderr) == (["found", "connected"], "")

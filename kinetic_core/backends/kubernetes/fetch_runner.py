# The program a container starts with, in standard Python of 3.11 or newer. bootstrap.py reads it as text.
import gc
import os
import signal
import sys

gc.disable()
# The kernel drops a signal that the first process of a container has no handler for: a pod that is told to
# leave while it fetches the runner would stay for the whole of its grace. The runner has handlers of its own.
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
sys.path[:] = [entry for entry in sys.path if entry]
if sys.version_info < (3, 11):  # noqa: UP036  whatever the image has
    has = ".".join(map(str, sys.version_info[:2]))
    print("kinetic: the image has Python " + has + ", and the runner needs 3.11 or newer", file=sys.stderr)
    sys.exit(65)


def get(scheme, host, path, headers, most):
    # http.client, which the runner needs too: urllib.request takes longer to import than the request does
    import http.client

    kind = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
    connection = kind(host, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        body = answer.read(most)
        if len(body) < most and answer.length:
            raise http.client.IncompleteRead(body)
    except http.client.HTTPException as error:
        raise OSError(str(error) or type(error).__name__) from error
    finally:
        connection.close()
    return answer.status, body


def fetch(store, name, most):
    from urllib.parse import quote, unquote

    if store.startswith("file://"):
        with open(f"{unquote(store[7:])}/{name}", "rb") as stream:
            return 200, stream.read(most)
    bucket, _, prefix = store.removeprefix("gs://").partition("/")
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    path = quote(f"{prefix}/{name}" if prefix else name, safe="")
    scheme, _, host = (emulator or "https://storage.googleapis.com").rstrip("/").partition("://")
    headers = {"Accept-Encoding": "gzip"}  # else what was stored packed is unpacked, to any size
    if not emulator:
        headers["Authorization"] = "Bearer " + token()
    return get(scheme, host, f"/storage/v1/b/{bucket}/o/{path}?alt=media", headers, most)


def token():
    import json

    if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        import google.auth
        from google.auth.transport.requests import Request as Transport

        credentials, _ = google.auth.default(["https://www.googleapis.com/auth/devstorage.read_only"])
        credentials.refresh(Transport())
        return credentials.token
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    path = "/computeMetadata/v1/instance/service-accounts/default/token"
    status, body = get("http", host, path, {"Metadata-Flavor": "Google"}, 1 << 20)
    if status != 200:
        raise OSError(f"the metadata server gives no token: HTTP {status}")
    return json.loads(body)["access_token"]


def fetched(store, sha256, size):
    import hashlib
    import time

    for tried in range(10):
        try:
            status, archive = fetch(store, f"runners/{sha256}.zip", size + 1)
            why = f"HTTP {status}"
        except MemoryError:
            print("kinetic: no memory to fetch the runner: give the job more (memory=)", file=sys.stderr)
            sys.exit(65)
        except Exception as error:  # noqa: BLE001  google-auth has errors of its own, and a proxy answers anything
            gone = store.startswith("file:") and isinstance(error, FileNotFoundError)
            status, why = 404 if gone else 500, f"{type(error).__name__}: {error}"
        if status == 200:
            break
        if status == 404:
            print(f"kinetic: {store}/runners/{sha256}.zip is gone: submit again", file=sys.stderr)
            sys.exit(70)
        if tried == 9 or status in (400, 403):
            print(f"kinetic: cannot fetch the runner from {store}: {why}", file=sys.stderr)
            sys.exit(65 if is_last_restart() else 67)
        time.sleep(min(2**tried / 4, 10) * (0.5 + os.urandom(1)[0] / 255))
    if len(archive) > size or hashlib.sha256(archive).hexdigest() != sha256:
        print("kinetic: the runner in the store is not the one this job was submitted with", file=sys.stderr)
        sys.exit(65)
    folder = os.path.join(os.environ["KINETIC_WORK_DIR"], f"runner-{os.getpid()}")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "runner.zip")
    with open(path, "wb") as stream:
        stream.write(archive)
    return path


def is_last_restart():
    # as the runner judges; the Job controller has no limit of its own
    spent, allowed = (
        int(os.environ.get(name) or 0) for name in ("KINETIC_IGNORED_COUNT", "KINETIC_INFRASTRUCTURE_RETRIES")
    )
    return not os.environ.get("KINETIC_SET") and spent >= allowed


def own_runner(path, protocol):
    """An image may bring a runner; one of another protocol is left alone."""
    import re

    try:
        with open(path, "rb") as stream:
            told = re.search(rb"^KINETIC_PROTOCOL = (\d+)", stream.read(1 << 16), re.MULTILINE)
    except OSError:
        return False
    return told is not None and told[1].decode() == protocol


folder = os.environ.get("KINETIC_RUNNER_DIR", "")
if not os.path.isdir(folder):
    if own_runner("/app/remote_runner.py", os.environ["KINETIC_PROTOCOL"]):
        command = [sys.executable, "-u", "/app/remote_runner.py"]
        os.execv(command[0], command)  # noqa: S606  a shell is what is not wanted
    size = int(os.environ["KINETIC_RUNNER_BYTES"])
    folder = fetched(os.environ["KINETIC_STORE"], os.environ["KINETIC_RUNNER_SHA256"], size)
sys.path.insert(0, folder)
from kinetic_runner import main

sys.path.remove(folder)
code = main.main()
sys.stdout.flush()
os._exit(code)

# The program a container starts with, in standard Python of 3.11 or newer. bootstrap.py reads it as text.
import gc
import os
import sys

gc.disable()
sys.path[:] = [entry for entry in sys.path if entry]
if sys.version_info < (3, 11):  # noqa: UP036  whatever the image has
    has = ".".join(map(str, sys.version_info[:2]))
    print("kinetic: the image has Python " + has + ", and the runner needs 3.11 or newer", file=sys.stderr)
    sys.exit(65)


def fetch(store, name):
    from urllib.parse import quote, unquote
    from urllib.request import Request, urlopen

    if store.startswith("file://"):
        with open(f"{unquote(store[7:])}/{name}", "rb") as stream:
            return stream.read()
    bucket, _, prefix = store.removeprefix("gs://").partition("/")
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    path = quote(f"{prefix}/{name}" if prefix else name, safe="")
    url = f"{emulator or 'https://storage.googleapis.com'}/storage/v1/b/{bucket}/o/{path}?alt=media"
    headers = {} if emulator else {"Authorization": "Bearer " + token()}
    with urlopen(Request(url, headers=headers), timeout=60) as answer:
        return answer.read()


def token():
    import json
    from urllib.request import Request, urlopen

    if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
        import google.auth
        from google.auth.transport.requests import Request as Transport

        credentials, _ = google.auth.default(["https://www.googleapis.com/auth/devstorage.read_only"])
        credentials.refresh(Transport())
        return credentials.token
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    url = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
    with urlopen(Request(url, headers={"Metadata-Flavor": "Google"}), timeout=10) as answer:
        return json.load(answer)["access_token"]


def fetched(store, sha256):
    import hashlib
    import random
    import tempfile
    import time

    for tried in range(10):
        try:
            archive = fetch(store, f"runners/{sha256}.zip")
            break
        except OSError as error:
            if tried == 9 or getattr(error, "code", 500) in (400, 403, 404):
                print(f"kinetic: cannot fetch the runner from {store}: {error}", file=sys.stderr)
                sys.exit(67)
            time.sleep(min(2**tried / 4, 10) * (0.5 + random.random()))
    if hashlib.sha256(archive).hexdigest() != sha256:
        print("kinetic: the runner in the store is not the one this job was submitted with", file=sys.stderr)
        sys.exit(65)
    path = os.path.join(tempfile.mkdtemp(prefix="kinetic-runner-"), "runner.zip")
    with open(path, "wb") as stream:
        stream.write(archive)
    return path


folder = os.environ.get("KINETIC_RUNNER_DIR", "")
if not os.path.isdir(folder):
    folder = fetched(os.environ["KINETIC_STORE"], os.environ["KINETIC_RUNNER_SHA256"])
sys.path.insert(0, folder)
from kinetic_runner import main

sys.path.remove(folder)
code = main.main()
sys.stdout.flush()
os._exit(code)

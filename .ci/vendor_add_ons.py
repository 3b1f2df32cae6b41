"""Make kinetic_core/provision/vendored/ anew: what kinetic installs in clusters, as its projects release it.

Run from the root with the project's interpreter, with `kustomize` on the PATH:

    GOBIN=$PWD/.bin go install sigs.k8s.io/kustomize/kustomize/v5@v5.7.1
    PATH=$PWD/.bin:$PATH .venv/bin/python .ci/vendor_add_ons.py

A release's `manifests.yaml` is its `config/default`, built with the release's image (`make artifacts` there).
The sources come from the Go module proxy, and `go mod download` holds them against Go's checksum database.
Another version is another line of SOURCES, and another run. The same sources make the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[1] / "kinetic_core" / "provision" / "vendored"
SOURCES = {
    "lws": ("LeaderWorkerSet", "sigs.k8s.io/lws", "v0.9.0", "config/manager", "registry.k8s.io/lws/lws"),
    "kueue": (
        "Kueue",
        "sigs.k8s.io/kueue",
        "v0.15.0",
        "config/components/manager",
        "registry.k8s.io/kueue/kueue",
    ),
}
"""Title, Go module, version, folder of the image's name, image."""


def main() -> None:
    listed = {}
    for name, (title, module, version, manager, image) in SOURCES.items():
        with tempfile.TemporaryDirectory(prefix="kinetic-vendor-") as folder:
            objects = built(Path(folder), module, version, manager, image)
        content = gzip.compress(json.dumps(objects, separators=(",", ":"), sort_keys=True).encode(), mtime=0)
        (FOLDER / f"{name}.json.gz").write_bytes(content)
        listed[name] = {
            "title": title,
            "version": version,
            "image": f"{image}:{version}",
            "source": f"https://proxy.golang.org/{module}/@v/{version}.zip, config/default",
            "licence": "Apache-2.0",
            "copyright": "The Kubernetes Authors",
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    (FOLDER / "vendored.json").write_text(json.dumps(listed, indent=2) + "\n")


def program(name: str) -> str:
    """Where it is."""
    return shutil.which(name) or sys.exit(f"vendor_add_ons: there is no {name} on the PATH")


def built(folder: Path, module: str, version: str, manager: str, image: str) -> list[object]:
    """The objects of a release, in the order in which they are to be applied."""
    asked = [program("go"), "mod", "download", "-json", f"{module}@{version}"]
    told = subprocess.run(asked, cwd=folder, check=True, capture_output=True, text=True).stdout
    source = folder / "source"
    shutil.copytree(json.loads(told)["Dir"], source)
    for path in (source / manager, *(source / manager).iterdir()):
        path.chmod(0o755)  # the module cache is read-only
    name = f"controller={image}:{version}"
    kustomize = program("kustomize")
    subprocess.run([kustomize, "edit", "set", "image", name], cwd=source / manager, check=True)
    command = [kustomize, "build", str(source / "config" / "default")]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [each for each in yaml.safe_load_all(text) if each]


if __name__ == "__main__":
    main()

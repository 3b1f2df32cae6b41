"""What is built: two Dockerfiles and lists of requirements, named by their content.

The *base* has the Python, uv, a compiler and the framework: projects with the same framework share it, on
nodes too. The image on top has everything the project wants, resolved together with the framework.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

from kinetic_core._runner.wire import PROTOCOL
from kinetic_core.images.frameworks import Installation

UV = "ghcr.io/astral-sh/uv:0.11.1"
PACKAGE = "base"
"""The images' name in their repository, as the specification has it; the tag says which."""
PROTOCOL_LABEL, PYTHON_LABEL = "dev.kinetic.protocol", "dev.kinetic.python"
"""What a base image says it is for."""

_BASE = """\
FROM {python_image}
RUN apt-get update && apt-get install -y --no-install-recommends build-essential git \\
 && rm -rf /var/lib/apt/lists/*
COPY --from={uv} /uv /uvx /usr/local/bin/
COPY runtime.txt /opt/kinetic/runtime.txt
RUN uv pip install --system --no-cache{options} -r /opt/kinetic/runtime.txt
LABEL {python_label}={python} {protocol_label}={protocol}
WORKDIR /app
ENV KERAS_BACKEND={keras_backend}
CMD ["python3"]
"""
_IMAGE = """\
FROM {base}
COPY requirements.txt constraints.txt /opt/kinetic/
RUN uv pip install --system --no-cache{options} -r /opt/kinetic/requirements.txt
ENV KERAS_BACKEND={keras_backend}
"""


@dataclass(frozen=True, slots=True)
class Recipe:
    """An image for an accelerator's `kind` (`cpu`, `gpu`, `tpu`) with an installation."""

    kind: str
    installation: Installation
    python: str = ".".join(map(str, sys.version_info[:2]))
    protocol: int = PROTOCOL

    @property
    def python_image(self) -> str:
        return f"python:{self.python}-slim"

    @property
    def base_tag(self) -> str:
        """Names the layer with the framework."""
        return f"runtime-{self.kind}-py{self.python}-{_short([self.dockerfile_of_base(), self.runtime])}"

    @property
    def tag(self) -> str:
        """Names the image: equal for equal content, whatever the order, comments and spelling."""
        content = [self.base_tag, self.dockerfile("base"), self.requirements, self.constraints]
        return f"{self.kind}-{_short(content)}"

    @property
    def runtime(self) -> str:
        return _text(*self.installation.ours, *self.installation.runtime)

    @property
    def requirements(self) -> str:
        return _text(*self.installation.ours, *self.installation.lines)

    @property
    def constraints(self) -> str:
        return _text(*self.installation.constraints)

    def dockerfile_of_base(self) -> str:
        return _BASE.format(
            python_image=self.python_image,
            uv=UV,
            options=self._options(),
            python=self.python,
            protocol=self.protocol,
            python_label=PYTHON_LABEL,
            protocol_label=PROTOCOL_LABEL,
            keras_backend=self.installation.keras_backend,
        )

    def dockerfile(self, base: str) -> str:
        """The Dockerfile of the image on top of `base`, an address."""
        limits = " -c /opt/kinetic/constraints.txt" if self.constraints else ""
        return _IMAGE.format(
            base=base, options=self._options() + limits, keras_backend=self.installation.keras_backend
        )

    def context(self, base: str) -> bytes:
        """The build's source as tar.gz: the same bytes for the same recipe."""
        return archive(
            {
                "Dockerfile.base": self.dockerfile_of_base(),
                "Dockerfile": self.dockerfile(base),
                "runtime.txt": self.runtime,
                "requirements.txt": self.requirements,
                "constraints.txt": self.constraints,
            }
        )

    def _options(self) -> str:
        return "".join(f" {option}" for option in self.installation.uv_options)


def archive(files: Mapping[str, str]) -> bytes:
    """A tar.gz of texts: the same bytes for the same content."""
    stream = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, text in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return stream.getvalue()


def _text(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)


def _short(content: list[str]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]

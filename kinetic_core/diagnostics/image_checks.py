"""What `doctor` looks at for images: whether jobs get the one that is set, or where it would be built."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from urllib.parse import quote

from kinetic_core.connections import Connections
from kinetic_core.diagnostics.checks import Check, Finding
from kinetic_core.diagnostics.google_checks import GOOGLE_APIS
from kinetic_core.errors import ConfigurationError
from kinetic_core.images.base_images import Labels, base_image
from kinetic_core.images.bundled import Workshop
from kinetic_core.images.registry import GoogleApi, PublicRegistry, Repository

_NAME = "image"
_IMAGE = re.compile(r"(?P<image>[^@]+?)(?::(?P<tag>[\w.-]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?")
_VERSION = "PYTHON_VERSION"
"""A variable of Docker's own images of Python, and of those made from them."""
_PYTHON = ".".join(map(str, sys.version_info[:2]))


def image_check(connections: Connections, kind: str) -> Check:
    """Of `KINETIC_CONTAINER_IMAGE`, or without it of bundled images, for hardware of a kind."""

    def workshop() -> Workshop:
        return Workshop.of_cluster(connections)

    settings = connections.settings
    named = settings.container_image or "bundled"
    if named == "bundled":
        return Check(_NAME, lambda: bundled_finding(connections, workshop), GOOGLE_APIS)
    if named == "prebuilt":
        return Check(_NAME, lambda: prebuilt_finding(connections, kind, workshop), GOOGLE_APIS)
    parts = _IMAGE.fullmatch(named)
    if parts is None:
        refused = Finding(
            "fail", f"{named!r} is no image", "set KINETIC_CONTAINER_IMAGE to REGISTRY/NAME:TAG"
        )
        return Check(_NAME, lambda: refused)
    image, reference = parts["image"], parts["digest"] or parts["tag"] or "latest"
    place, package = _split(image)
    google = GoogleApi("artifactregistry", connections)
    if place is not None:
        return Check(_NAME, lambda: private_finding(named, place, package, reference, google), GOOGLE_APIS)
    return Check(_NAME, lambda: public_finding(named, image, reference), silence=_unknown(named, "no answer"))


def bundled_finding(connections: Connections, workshop: Callable[[], Workshop]) -> Finding:
    """Of images that are built: where, and whether that is there."""
    if not connections.settings.project:
        return Finding(
            "warn",
            "none is set, and without KINETIC_PROJECT none is built: every call must say container_image=",
            "set KINETIC_CONTAINER_IMAGE to an image with Python and what your functions import",
        )
    place = workshop()
    try:
        place.repository.check(place.registry)
        place.check_bucket()
    except ConfigurationError as exc:
        return Finding(
            "fail",
            str(exc),
            "`kinetic up` makes repository and bucket for builds; or set KINETIC_CONTAINER_IMAGE to an image",
        )
    return Finding("ok", f"bundled: built into {place.repository.address} from what each project depends on")


def prebuilt_finding(
    connections: Connections, kind: str, workshop: Callable[[], Workshop], labels: Labels | None = None
) -> Finding:
    """Of base images: whether there is one for this Python and this client."""
    settings = connections.settings
    place = workshop() if settings.project else None
    if not (repository := settings.base_image_repo or (place.repository.address if place else "")):
        return Finding(
            "fail",
            "prebuilt, and no repository is known",
            "set KINETIC_BASE_IMAGE_REPO to what build_image was told, or KINETIC_PROJECT",
        )
    try:
        uri, notices = base_image(repository, kind, connections, place.registry if place else None, labels)
    except ConfigurationError as exc:
        fix = (
            f"kinetic build-image --category {kind} with Python {_PYTHON}, or KINETIC_CONTAINER_IMAGE=bundled"
        )
        return Finding("fail", str(exc), fix)
    return Finding("ok", f"prebuilt: {'; '.join(notices) or uri}")


def private_finding(named: str, place: Repository, package: str, reference: str, api: GoogleApi) -> Finding:
    """Of an image of Artifact Registry."""
    part = "versions" if reference.startswith("sha256:") else "tags"
    path = f"{place.path}/packages/{quote(package, safe='')}/{part}/{reference}"
    return _there(named, api.get(path) is not None)


def public_finding(named: str, image: str, reference: str) -> Finding:
    """Of an image of another registry, which may tell nobody but the nodes."""
    registry = PublicRegistry(image)
    try:
        found = _there(named, registry.digest(reference) is not None)
    except OSError as exc:
        return _unknown(named, str(exc))
    try:
        told = registry.environment(reference).get(_VERSION, "") if found.outcome == "ok" else ""
    except (OSError, ValueError, KeyError):  # whoever answers so does not say
        return found
    if told and ".".join(told.split(".")[:2]) != _PYTHON:
        fix = f"submit from the image's Python, or name an image with Python {_PYTHON}"
        return Finding("warn", f"{named} says that it has Python {told}, and this is {_PYTHON}", fix)
    return found


def _there(named: str, there: bool) -> Finding:
    if there:
        return Finding("ok", named)
    return Finding(
        "fail",
        f"the registry has no {named}",
        "correct KINETIC_CONTAINER_IMAGE, or push the image: jobs would wait for it",
    )


def _unknown(named: str, why: str) -> Finding:
    return Finding("skip", f"whether {named} exists is known to the nodes that pull it: {why}")


def _split(image: str) -> tuple[Repository | None, str]:
    """The repository of Artifact Registry that an image is in, and its name there."""
    host, *path = image.split("/", 3)
    if len(path) < 3:
        return None, ""
    return Repository.parse("/".join((host, *path[:2]))), path[2]

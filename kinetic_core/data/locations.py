"""What `gs://` and `hf://` paths say, checked where they are written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl

from kinetic_core.errors import InvalidRequest

_BUCKET = re.compile(r"[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]")  # cloud.google.com/storage/docs/buckets#naming
_DATASET = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
_PARAMETERS = ("split", "config_name", "revision", "plain")


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A dataset of the Hugging Face Hub; what is None is the hub's default, or everything.

    `plain` is its files as they are on the hub.
    """

    repo: str
    split: str | None = None
    config_name: str | None = None
    revision: str | None = None
    plain: bool = False


def gcs_location(uri: str) -> tuple[str, str]:
    """Bucket and object name, or prefix that ends with a slash or is empty. Raises InvalidRequest."""
    bucket, separator, name = uri.removeprefix("gs://").partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise InvalidRequest(f"Data({uri!r}): {bucket!r} is no name of a bucket")
    if not separator:
        raise InvalidRequest(f"Data({uri!r}) names no object. The whole bucket is 'gs://{bucket}/'")
    parts = name.removesuffix("/").split("/") if name else []
    if any(part in ("", ".", "..") for part in parts) or "\n" in name or "\r" in name:
        raise InvalidRequest(f"Data({uri!r}): {name!r} cannot be a path on a disk")
    return bucket, name


def hub_dataset(uri: str) -> HubDataset:
    """The dataset a `hf://` path names. Raises InvalidRequest."""
    repo, _, query = uri.removeprefix("hf://").partition("?")
    if repo.count("/") == 2:
        repo = repo.removeprefix("datasets/")  # as huggingface_hub writes it
    if not _DATASET.fullmatch(repo) or ".." in repo:
        raise InvalidRequest(
            f"Data({uri!r}): {repo!r} is no dataset; write 'hf://owner/name' or 'hf://name', with "
            "?split=, config_name=, revision= or plain=true behind it"
        )
    try:
        given = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError as exc:
        raise InvalidRequest(f"Data({uri!r}): {query!r} is not 'name=value&name=value'") from exc
    for name, value in given:
        if name not in _PARAMETERS:
            raise InvalidRequest(f"Data({uri!r}): {name!r} is not one of {', '.join(_PARAMETERS)}")
        if not value:
            raise InvalidRequest(f"Data({uri!r}): {name}= is empty; leave it out")
    if len(given) != len(dict(given)):
        raise InvalidRequest(f"Data({uri!r}) names a parameter twice")
    asked = dict(given)
    if (plain := asked.pop("plain", "false")) not in ("true", "false"):
        raise InvalidRequest(f"Data({uri!r}): plain={plain} is neither true nor false")
    return HubDataset(repo, **asked, plain=plain == "true")

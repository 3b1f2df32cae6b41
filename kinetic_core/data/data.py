"""`Data`: files a job needs besides its project, as a plain path inside the job."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kinetic_core.data.locations import HubDataset, gcs_location, hub_dataset
from kinetic_core.errors import InvalidRequest
from kinetic_core.job import in_job

_CHUNK = 256 << 10


def content_hash(path: Path) -> str:
    """See `Data.content_hash`. Files are read side by side. Raises OSError for one that cannot be read."""
    if not path.is_dir():
        return hashlib.sha256(b"file:" + _file_digest(path, path.name)).hexdigest()
    total = hashlib.sha256(b"dir:")
    files = _files(path)
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for digest in pool.map(_file_digest, files, (file.relative_to(path).as_posix() for file in files)):
            total.update(digest)
    return total.hexdigest()


def _files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for base, _, names in os.walk(folder):
        found.extend(file for file in (Path(base) / name for name in names) if file.exists())
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix().split("/"))


def _file_digest(file: Path, relative: str) -> bytes:
    digest = hashlib.sha256(relative.encode(errors="surrogateescape") + b"\0")
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    with file.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            digest.update(view[:count])
    return digest.digest()


class Data:
    """Files that a job should find on its disk.

    Wherever a `Data` stands in the arguments, however deep, the function receives a `str` path; as a
    value of `volumes={mount: Data(...)}` it appears at the mount path, which is a directory with a single
    file in it. `path` is one of

    - a local file or directory: `~` and relative paths are resolved here and now. Its content is stored
      once per content, so passing the same data again uploads nothing;
    - `gs://bucket/directory/` (with the slash) or `gs://bucket/object`, as it is when the job starts;
    - `hf://dataset?split=train&config_name=...&revision=...`: a dataset of the Hugging Face Hub, as a
      directory that `datasets.load_from_disk` reads; the job needs the package `datasets`. With `plain=true`
      its files as they are; Python files among them come along only with `hf_trust_remote_code=True`.

    `fuse=True` mounts local or `gs://` data in the pod instead of copying it there: what is not read is not
    fetched. `shard=True` gives each host of a multi-host job its share of the files.

    Raises FileNotFoundError if nothing is at a local path, InvalidRequest for a path or option that can
    never work. Two `Data` of the same path and options are equal.
    """

    def __init__(
        self, path: str, fuse: bool = False, hf_trust_remote_code: bool = False, *, shard: bool = False
    ) -> None:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"Data({path!r}): give the path of a file or directory")
        for name, value in (("fuse", fuse), ("hf_trust_remote_code", hf_trust_remote_code), ("shard", shard)):
            if not isinstance(value, bool):
                raise TypeError(f"Data: {name}={value!r} must be True or False")
        text = os.fspath(path)
        if not text:
            raise InvalidRequest("Data(path): the path is empty")
        self._fuse, self._trust, self._shard = fuse, hf_trust_remote_code, shard
        self._dataset: HubDataset | None = None
        self._path = self._checked(text)
        if fuse and self.is_hf:
            raise InvalidRequest(f"Data({text!r}): a dataset of the hub cannot be mounted; leave fuse out")
        if fuse and shard:
            raise InvalidRequest("Data: fuse=True mounts everything; leave shard out")
        if hf_trust_remote_code and not self.is_hf:
            raise InvalidRequest(f"Data({text!r}): hf_trust_remote_code means something for hf:// paths only")

    def _checked(self, text: str) -> str:
        scheme, separator, _ = text.partition("://")
        if not separator:
            path = os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111  links stay links
            if not (Path(path).exists() or in_job()):  # the job has it where it is an argument
                raise FileNotFoundError(f"Data({text!r}): {path} does not exist")
            return path
        if scheme == "gs":
            gcs_location(text)
        elif scheme == "hf":
            self._dataset = hub_dataset(text)
        else:
            raise InvalidRequest(
                f"Data({text!r}): {scheme}:// is not one of gs:// and hf://; give one of these, a local "
                "path, or pass the URI as a string and open it in the function"
            )
        return text

    @property
    def path(self) -> str:
        """The absolute local path, or the URI."""
        return self._path

    @property
    def fuse(self) -> bool:
        """Whether it is mounted instead of copied."""
        return self._fuse

    @property
    def hf_trust_remote_code(self) -> bool:
        """Whether Python files of a dataset come along."""
        return self._trust

    @property
    def shard(self) -> bool:
        """Whether each host gets its share of the files."""
        return self._shard

    @property
    def is_gcs(self) -> bool:
        return self._path.startswith("gs://")

    @property
    def is_hf(self) -> bool:
        return self._dataset is not None

    @property
    def is_local(self) -> bool:
        return not (self.is_gcs or self.is_hf)

    @property
    def is_dir(self) -> bool:
        """Whether the job gets a directory. A `gs://` path says so by the slash at its end."""
        if self.is_gcs:
            return self._path.endswith("/")
        return self.is_hf or Path(self._path).is_dir()

    @property
    def dataset(self) -> HubDataset | None:
        """What a `hf://` path names."""
        return self._dataset

    def content_hash(self) -> str:
        """SHA-256 of the content, in hex.

        A file counts as SHA-256(name, NUL, bytes), a directory as the digests of its files in sorted
        depth-first order, each over its relative path; directory links are not followed, file links are
        read through. Names and bytes decide, modes and times do not. Raises InvalidRequest for `gs://`
        and `hf://` paths, whose content is not here.
        """
        if not self.is_local:
            raise InvalidRequest(f"{self!r}: the content of {self._path} is not on this machine")
        return content_hash(Path(self._path))

    def _key(self) -> tuple[str, bool, bool, bool]:
        return self._path, self._fuse, self._trust, self._shard

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Data) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        options = [
            f", {name}=True"
            for name, on in zip(("fuse", "hf_trust_remote_code", "shard"), self._key()[1:], strict=True)
            if on
        ]
        return f"Data({self._path!r}{''.join(options)})"

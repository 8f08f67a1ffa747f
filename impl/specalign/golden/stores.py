"""Goldens too large for a repository: it keeps a small document that pins the file by its SHA-256, and a store keeps the file."""

from __future__ import annotations

import hashlib
import importlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from filelock import FileLock

from specalign.compare.leaves import Leaf
from specalign.dump.files import BLOCK, sync_folder, writing
from specalign.golden.document import Document
from specalign.golden.environment import Environment
from specalign.golden.errors import GoldenError
from specalign.golden.files import Golden, Place, read_tensor_file, write_document, write_tensor_file, writing_golden
from specalign.golden.keys import Key
from specalign.layer_ids.files import InputError, open_regular, shown

Identity = tuple[int, int, int, int]


class Store(Protocol):
    """Where large goldens are. Files are named by their content, so that nothing is ever overwritten."""

    def fetch(self, sha256: str, size: int) -> Path:
        """A local file with that content. Whoever calls checks the SHA-256 of what comes back.

        Raises:
            GoldenError: it cannot be had.
        """

    def keep(self, path: Path, sha256: str) -> None:
        """Take a local file into the store; the file may be gone afterwards.

        Raises:
            GoldenError: the store does not take it.
        """


class FsspecStore:
    """A store behind any file system of fsspec: s3://, gs://, hf://, file://, …; and a cache of it on this machine.

    What is in the cache is used without the network, and without fsspec. A file appears in the cache after its SHA-256 was
    found right. A file of the cache that has changed since is fetched anew.

    Not guaranteed: that a store keeps what it took. Nothing here deletes from a store.
    """

    def __init__(self, url: str, cache: str | os.PathLike[str] | None = None, **options: Any) -> None:
        """Args:
        url: the folder, as `s3://bucket/goldens`.
        cache: a folder on this machine; by default `specalign/goldens` in `$XDG_CACHE_HOME`, else in `~/.cache`.
        options: for the file system, as fsspec takes them (`anon=True`, …).
        """
        self.url = url.rstrip("/")
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self.cache = Path(cache) if cache is not None else Path(base) / "specalign" / "goldens"
        self._options = options

    def fetch(self, sha256: str, size: int) -> Path:
        """The file in the cache, downloaded first where it is not there or is not what it was."""
        path = self.cache / sha256[:2] / sha256
        with writing_golden(), writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(path.with_name(f".{sha256}.lock")):
                if not path.is_file() or path.stat().st_size != size or digest_of(path) != sha256:
                    self._download(path, sha256, size)
        return path

    def keep(self, path: Path, sha256: str) -> None:
        """Upload unless the store has it; under another name first, so that a broken upload has not this one."""
        system, base = self._open()
        target = f"{base}/{sha256[:2]}/{sha256}"
        passing = f"{target}.{os.urandom(8).hex()}.part"
        try:
            if system.exists(target):
                return
            system.makedirs(f"{base}/{sha256[:2]}", exist_ok=True)
            system.put_file(str(path), passing)
            system.mv(passing, target)
        except Exception as error:  # what a file system raises is up to it
            raise GoldenError(
                f"{self.url}: does not take the golden {sha256}: {_said(error)}; look at access and network"
            ) from error

    def _download(self, path: Path, sha256: str, size: int) -> None:
        system, base = self._open()
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{sha256}.", suffix=".part")
        os.close(handle)
        temporary = Path(name)
        try:
            try:
                system.get_file(f"{base}/{sha256[:2]}/{sha256}", name)
            except Exception as error:
                raise GoldenError(
                    f"{self.url}: the golden {sha256} ({size} bytes) cannot be fetched: {_said(error)}; look at access and"
                    " network. Without it nothing was compared"
                ) from error
            found = digest_of(temporary)
            if found != sha256:
                raise GoldenError(
                    f"{self.url}: what came for the golden {sha256} has the SHA-256 {found} and {temporary.stat().st_size} bytes,"
                    f" not {size}: the store was changed or the download cut off; nothing was compared"
                )
            with open(temporary, "rb") as file:  # noqa: PTH123  # for its descriptor
                os.fsync(file.fileno())
            temporary.chmod(0o444)
            temporary.replace(path)
            sync_folder(path.parent)
        finally:
            temporary.unlink(missing_ok=True)

    def _open(self) -> tuple[Any, str]:
        try:
            core = importlib.import_module("fsspec.core")
        except ModuleNotFoundError as missing:
            if missing.name not in ("fsspec", "fsspec.core"):
                raise
            raise GoldenError("a store of goldens needs fsspec: pip install 'pytest-specalign[store]'") from None
        try:
            system, base = core.url_to_fs(self.url, **self._options)
        except Exception as error:
            raise GoldenError(
                f"{self.url}: cannot be opened: {_said(error)}; is the package of that file system there?"
            ) from error
        return system, str(base)


class Fetcher:
    """Fetches the files of goldens, and looks at the SHA-256 of each once in a process."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._seen: dict[tuple[str, Path], Identity] = {}

    def open(self, golden: Golden) -> Golden:
        """The golden in the store that a document points at.

        Raises:
            GoldenError: it cannot be fetched, has another SHA-256, or is the golden of something else.
        """
        document = golden.document
        path = Path(self.store.fetch(document.sha256, document.size))
        self._verify(path, document)
        try:
            fetched = read_tensor_file(path)
        except InputError as error:
            raise GoldenError(str(error)) from error
        said, meant = fetched.document, document
        if (said.key, said.environment.device, said.environment.arch) != (
            meant.key,
            meant.environment.device,
            meant.environment.arch,
        ):
            raise GoldenError(
                f"{shown(golden.path)}: points at the golden of {said.key.text} on {said.environment.arch}, and is itself that of"
                f" {meant.key.text} on {meant.environment.arch}; write it anew"
            )
        return fetched

    def _verify(self, path: Path, document: Document) -> None:
        try:
            status = path.stat()
            identity = status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            if self._seen.get((document.sha256, path)) == identity:
                return
            found = digest_of(path)
        except (OSError, InputError) as error:
            raise GoldenError(f"{shown(path)}: the store says that the golden is here, and it cannot be read: {error}") from error
        if found != document.sha256 or status.st_size != document.size:
            raise GoldenError(
                f"{shown(path)}: has the SHA-256 {found} and {status.st_size} bytes, and the golden is pinned to"
                f" {document.sha256} and {document.size} bytes; nothing was compared"
            )
        self._seen[document.sha256, path] = identity


def write_external(store: Store, place: Place, key: Key, environment: Environment, leaves: Sequence[Leaf]) -> Path:
    """Give a golden of values to a store, then write the document that pins it, in the place of one that may be there.

    Raises:
        GoldenError: one of the two cannot be done. What was in the place of the document stays there.
    """
    with tempfile.TemporaryDirectory(prefix="specalign-golden-") as folder:
        file = Path(folder) / "golden.safetensors"
        write_tensor_file(file, key, environment, leaves, "values")
        digest, size = digest_of(file), file.stat().st_size
        store.keep(file, digest)
    return write_document(place, Document("external", key, environment, sha256=digest, size=size))


def digest_of(path: Path) -> str:
    """The SHA-256 of a file, as 64 hexadecimal digits. Raises `InputError` for one that cannot be read."""
    digest: Final = hashlib.sha256()
    with open_regular(path) as (handle, _):
        buffer = bytearray(BLOCK)
        while count := handle.readinto(buffer):  # type: ignore[attr-defined]
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()


def check_store(store: object) -> Store:
    """What a hook returned, if it is a store.

    Raises:
        GoldenError: it is none.
    """
    fetch, keep = getattr(store, "fetch", None), getattr(store, "keep", None)
    if not callable(fetch) or not callable(keep):
        raise GoldenError(
            f"pytest_specalign_golden_store: returned {store!r}, which has no fetch(sha256, size) and keep(path, sha256): return"
            " specalign.golden.stores.FsspecStore(url) or the like"
        )
    return store  # type: ignore[return-value]


def _said(error: Exception) -> str:
    first: Mapping[bool, str] = {True: f"{type(error).__name__}: {error}", False: type(error).__name__}
    return " ".join(first[bool(str(error))].split())[:500]

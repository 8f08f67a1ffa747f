"""Goldens in a store: pinned by their SHA-256, cached, used offline; what goes wrong is an error."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from specalign.golden.check import read_result
from specalign.golden.document import Document
from specalign.golden.errors import GoldenError
from specalign.golden.files import Golden, read_golden, write_document, write_tensor_file
from specalign.golden.keys import Key
from specalign.golden.stores import Fetcher, FsspecStore, check_store
from tests.unit.golden.made import CPU, KEY, checked, place

pytest.importorskip("fsspec")

ROWS = np.arange(12, dtype="f4").reshape(3, 4)


def stored(tmp_path: Path, key: Key = KEY, *, keep: bool = True) -> Golden:
    """The pointer of a golden whose file was taken into the store at tmp_path / "remote"."""
    file = tmp_path / f"{key.name}.bin"
    write_tensor_file(file, key, CPU, read_result("", ROWS, None), "values")
    digest, size = hashlib.sha256(file.read_bytes()).hexdigest(), file.stat().st_size
    if keep:
        store(tmp_path).keep(file, digest)
    file.unlink()
    return read_golden(write_document(place(tmp_path / "g"), Document("external", KEY, CPU, sha256=digest, size=size)))


def store(tmp_path: Path) -> FsspecStore:
    return FsspecStore(f"file://{tmp_path}/remote/", cache=tmp_path / "cache")


def remote(tmp_path: Path, pointer: Golden) -> Path:
    sha256 = pointer.document.sha256
    return tmp_path / "remote" / sha256[:2] / sha256


def cached(tmp_path: Path, pointer: Golden) -> Path:
    sha256 = pointer.document.sha256
    return tmp_path / "cache" / sha256[:2] / sha256


def test_a_golden_comes_back_as_it_was(tmp_path: Path) -> None:
    pointer = stored(tmp_path)
    golden = Fetcher(store(tmp_path)).open(pointer)
    assert checked(golden, ROWS).ok
    assert not checked(golden, ROWS + 1).ok
    assert remote(tmp_path, pointer).read_bytes() == cached(tmp_path, pointer).read_bytes()
    assert pointer.path.stat().st_size < 1000


def test_what_was_fetched_once_is_used_offline_and_without_fsspec(tmp_path: Path) -> None:
    pointer = stored(tmp_path)
    Fetcher(store(tmp_path)).open(pointer)
    remote(tmp_path, pointer).unlink()
    code = (
        "import sys; sys.modules['fsspec'] = sys.modules['fsspec.core'] = None\n"
        "from pathlib import Path\n"
        "from tests.unit.golden.offline import fetch\n"
        f"fetch(Path({str(tmp_path)!r}), Path({str(pointer.path)!r}))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_failed_download_is_an_error(tmp_path: Path) -> None:
    pointer = stored(tmp_path, keep=False)
    with pytest.raises(GoldenError, match=r"cannot be fetched: FileNotFoundError.* Without it nothing was compared"):
        Fetcher(store(tmp_path)).open(pointer)
    assert list((tmp_path / "cache").rglob("*.part")) == []
    assert not cached(tmp_path, pointer).exists()


@pytest.mark.parametrize("change", ["flip", "cut"])
def test_a_wrong_hash_is_an_error_and_does_not_reach_the_cache(tmp_path: Path, change: str) -> None:
    pointer = stored(tmp_path)
    path = remote(tmp_path, pointer)
    data = bytearray(path.read_bytes())
    path.unlink()
    path.write_bytes(data[:-1] if change == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(GoldenError, match="what came for the golden"):
        Fetcher(store(tmp_path)).open(pointer)
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and not p.name.endswith(".lock")] == []


def test_a_damaged_cache_is_fetched_anew(tmp_path: Path) -> None:
    pointer = stored(tmp_path)
    Fetcher(store(tmp_path)).open(pointer)
    path = cached(tmp_path, pointer)
    good = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    assert checked(Fetcher(store(tmp_path)).open(pointer), ROWS).ok
    assert path.read_bytes() == good


def test_what_another_store_returns_is_looked_at_as_well(tmp_path: Path) -> None:
    pointer = stored(tmp_path)

    class Careless:
        def fetch(self, sha256: str, size: int) -> Path:
            return tmp_path / "anything"

        def keep(self, path: Path, sha256: str) -> None:
            raise AssertionError

    fetcher = Fetcher(check_store(Careless()))
    with pytest.raises(GoldenError, match="the store says that the golden is here"):
        fetcher.open(pointer)
    (tmp_path / "anything").write_bytes(b"something else")
    with pytest.raises(GoldenError, match="the golden is pinned to"):
        fetcher.open(pointer)
    (tmp_path / "anything").write_bytes(remote(tmp_path, pointer).read_bytes())
    assert checked(fetcher.open(pointer), ROWS).ok
    changed = bytearray((tmp_path / "anything").read_bytes())
    changed[-1] ^= 1
    (tmp_path / "anything").write_bytes(changed)  # after it was looked at once
    with pytest.raises(GoldenError, match="the golden is pinned to"):
        fetcher.open(pointer)


def test_a_pointer_to_the_golden_of_another_result_is_refused(tmp_path: Path) -> None:
    other = stored(tmp_path, Key(KEY.module, KEY.classes, KEY.function, KEY.params, "others"))
    with pytest.raises(GoldenError, match=r"points at the golden of .*::others on cpu, and is itself that of"):
        Fetcher(store(tmp_path)).open(other)


def test_a_store_keeps_what_it_has(tmp_path: Path) -> None:
    pointer = stored(tmp_path)
    before = remote(tmp_path, pointer).stat().st_mtime_ns
    stored(tmp_path)
    assert remote(tmp_path, pointer).stat().st_mtime_ns == before
    assert list((tmp_path / "remote").rglob("*.part")) == []


def test_what_does_not_work_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pointer = stored(tmp_path)
    with pytest.raises(GoldenError, match="nowhere://x: cannot be opened: ValueError: Protocol not known"):
        FsspecStore("nowhere://x", cache=tmp_path / "other").fetch(pointer.document.sha256, pointer.document.size)
    file = tmp_path / "remote.file"
    file.write_text("in the way")
    with pytest.raises(GoldenError, match="does not take the golden"):
        FsspecStore(f"file://{file}", cache=tmp_path / "other").keep(file, "0" * 64)
    with pytest.raises(GoldenError, match="which has no fetch"):
        check_store("s3://bucket")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(GoldenError, match=r"pip install 'pytest-specalign\[store\]'"):
        FsspecStore("file:///x", cache=tmp_path / "other").fetch("1" * 64, 1)

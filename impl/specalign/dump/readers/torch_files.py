"""The one place that loads `.pt` files. Nothing in them is ever run, and most of them need no torch.

A pickle can run any code when it is loaded. `torch_zip.py` reads what `torch.save` writes for tensors and plain values, by a
table of opcodes none of which calls anything. What it does not know goes to torch's `weights_only` unpickler, which makes tensors
and plain containers only and refuses everything else before it is called; whatever it refuses is one `DumpError` here.
"""

from __future__ import annotations

import mmap
import sys
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, TypeAlias

from specalign.dump.dtypes import BY_TORCH_NAME, DTYPES
from specalign.dump.errors import DumpError
from specalign.dump.files import map_open, reading
from specalign.dump.readers.entries import FileTensor
from specalign.dump.readers.torch_layouts import Layouts, TorchLayout, filled, layout_of
from specalign.dump.readers.torch_pickle import Name
from specalign.dump.readers.torch_zip import Place, TorchZip, UnknownArchiveError
from specalign.layer_ids.files import open_regular, quoted, shown

Loaded: TypeAlias = Any
"""None, bool, int, float, str, `FileTensor`, or a dict or list of these."""

_ZIP: Final = b"PK\x03\x04"
_LARGE: Final = 2**32
"""Bytes from which on torch maps a file in place of reading it. Of a mapped file it takes what lies behind a storage that is
smaller than the pickle says."""

_UNSIGNED: Final = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
_MAX_DEPTH: Final = 20
_MAX_VALUES: Final = 10_000_000
_LAYOUTS: Final = Layouts()


def load_torch_file(path: Path) -> Loaded:
    """What `torch.save` wrote, with every tensor as raw bits; tuples come as lists.

    Files of torch's zip format (the default since 1.6) are mapped: a tensor's bytes are read when they are looked at, and stay
    mapped for as long as its array lives. A file that is cut off while it is mapped ends the process; read dumps after they
    were written.

    Raises:
        DumpError: no such file; a file that is cut off or no torch file; a pickle that holds more than tensors and plain values
            (nothing of it is run); an element type that dumps do not know; torch is not installed and the file is not exactly as
            today's `torch.save` writes it.
    """
    return open_torch_file(path).value


class TorchFile:
    """A `.pt` file that was opened.

    Attributes:
        layout: what it shares with other files of the same form; None if it has no known one.
    """

    def __init__(self, layout: TorchLayout | None, content: mmap.mmap | Loaded) -> None:
        """`content` is the mapped file of a layout, or without one the value."""
        self.layout, self._content = layout, content
        self._value: tuple[Loaded] | None = None

    @property
    def value(self) -> Loaded:
        """As `load_torch_file` gives it."""
        if self.layout is None:
            return self._content
        if self._value is None:
            self._value = (filled(self.layout.value, self._content),)
        return self._value[0]

    @property
    def names(self) -> Collection[str]:
        """Of the entries of a table."""
        names: Collection[str] = (self.value if self.layout is None else self.layout.value).keys()
        return names

    def part(self, name: str) -> Loaded:
        """One entry of a table, without the others."""
        return self.value[name] if self.layout is None else filled(self.layout.value[name], self._content)


def open_torch_file(path: Path) -> TorchFile:
    """A `.pt` file, of which `value` is what `load_torch_file` gives. Raises `DumpError` as that does."""
    where = shown(path)
    with reading(), open_regular(path) as (handle, size):
        if not size:
            raise DumpError(f"{where}: is empty; the writer was killed or the disk was full")
        mapped = map_open(handle, size)
    layout = _LAYOUTS.find(mapped)
    if layout is not None:
        return TorchFile(layout, mapped)
    zipped = mapped[:4] == _ZIP
    try:
        if zipped:
            archive = TorchZip(path, mapped)
            value = _Plain(where, archive).of(archive.value, 0)
            layout = layout_of(archive, value, mapped) if _LAYOUTS.is_second(archive, size) else None
            if layout is None:
                return TorchFile(None, filled(value, mapped))
            _LAYOUTS.add(layout)
            return TorchFile(layout, mapped)
    except UnknownArchiveError:
        pass
    del mapped
    return TorchFile(None, _Plain(where).of(_load_with_torch(path, zipped and size >= _LARGE), 0))


def _load_with_torch(path: Path, mapped: bool) -> object:
    torch, where = _import_torch(path), shown(path)
    try:
        with warnings.catch_warnings():
            # torch warns of TorchScript archives and old formats; they are refused or read all the same.
            warnings.simplefilter("ignore")
            return torch.load(str(path), map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # whatever a damaged or hostile file makes of the unpickler
        raise _refusal(where, error) from error


def _import_torch(path: Path) -> Any:
    try:
        import torch
    except ImportError as error:
        raise DumpError(
            f"{shown(path)}: is damaged, or not as today's torch.save writes tensors; then only torch can tell ({error}):"
            " pip install 'pytest-specalign[torch]'"
        ) from error
    return torch


def _refusal(where: str, error: Exception) -> DumpError:
    text = str(error)
    if "Unsupported global" in text or "weights_only" in text.lower() or "Weights only" in text:
        return DumpError(
            f"{where}: its pickle holds more than tensors and plain values, and none of it was run"
            f" ({type(error).__name__}: {_cause(text)}); if you trust the writer, have it save tensors only"
        )
    reason = f"{type(error).__name__}: {_first_line(text)}"
    return DumpError(f"{where}: is no whole torch file ({reason}); was the writer killed, or is it another format?")


def _cause(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "GLOBAL" in line or "Unsupported" in line]
    return _first_line(lines[-1] if lines else text)


def _first_line(text: str) -> str:
    line = next((line for line in text.splitlines() if line.strip()), "")
    return quoted(line)


class _Plain:
    """Makes plain values of what was loaded, and counts them: a small file may name one list a billion times."""

    def __init__(self, where: str, archive: TorchZip | None = None) -> None:
        self.where, self.archive, self.left = where, archive, _MAX_VALUES

    def of(self, value: Any, depth: int) -> Loaded:
        """The value, with every tensor as raw bits, or its span in the archive; tuples come as lists."""
        self.left -= 1
        if depth > _MAX_DEPTH or self.left < 0:
            limit = f"nested more than {_MAX_DEPTH} levels deep" if depth > _MAX_DEPTH else f"of more than {_MAX_VALUES} values"
            raise DumpError(f"{self.where}: {limit}; is this a dump?")
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, Place) and self.archive is not None:
            return self.archive.span(value)
        if isinstance(value, dict):
            return {_name(name, self.where): self.of(item, depth + 1) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.of(item, depth + 1) for item in value]
        if isinstance(value, Name):
            return value.text.replace(" ", ".")
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            return _file_tensor(value, torch, self.where)
        return str(value)  # torch.dtype, torch.device and the like, in metadata


def _name(name: object, where: str) -> str | int:
    if isinstance(name, (str, int)):
        return name
    raise DumpError(f"{where}: a table has the name {quoted(name)}, which is neither text nor a number")


def _file_tensor(tensor: Any, torch: Any, where: str) -> FileTensor:
    name = str(tensor.dtype).removeprefix("torch.")
    dtype = BY_TORCH_NAME.get(name)
    if dtype is None or tensor.layout is not torch.strided:
        kind = name if dtype is None else str(tensor.layout)
        raise DumpError(f"{where}: holds a {kind} tensor; dumps hold dense tensors of {', '.join(DTYPES)}")
    try:
        raw = tensor.detach().contiguous().view(getattr(torch, _UNSIGNED[dtype.size])).numpy()
    except Exception as error:  # no storage at all, or a stride of 0 that claims more elements than there is memory
        raise DumpError(f"{where}: a tensor {list(tensor.shape)} has no usable data ({_first_line(str(error))})") from error
    return FileTensor(dtype.name, raw)

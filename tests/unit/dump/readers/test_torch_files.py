"""`.pt` files: every element type as raw bits, and nothing in a file is ever run."""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from specalign.dump.dtypes import DTYPES
from specalign.dump.errors import DumpError
from specalign.dump.readers import READERS, open_foreign
from specalign.dump.readers.entries import FileTensor
from specalign.dump.readers.torch_files import load_torch_file
from tests.unit.dump.readers.foreign import HOOKS, refused, save


class Hostile:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.path}",))


# torch itself cannot read its old format back for element types that came later.
OLD = ("BF16", "F16", "F32", "F64", "I64", "I32", "I16", "I8", "U8", "BOOL")
CASES = [(name, zipped) for zipped in (True, False) for name in DTYPES if zipped or name in OLD]


@pytest.mark.parametrize(("name", "zipped"), CASES)
def test_every_element_type_keeps_its_bits(tmp_path: Path, name: str, zipped: bool) -> None:
    dtype = DTYPES[name]
    raw = np.random.default_rng(0).integers(0, 2 if name == "BOOL" else 256, (3, 4 * dtype.size), np.uint8)
    tensor = torch.from_numpy(raw.copy()).view(getattr(torch, dtype.torch))
    torch.save({"x": tensor}, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    found = load_torch_file(tmp_path / "a.pt")["x"]
    assert (found.dtype, found.shape) == (dtype.name, (3, 4))
    assert found.data.dtype == np.dtype(dtype.raw)
    assert np.array_equal(found.data, raw.view(dtype.raw))


def test_views_come_out_in_the_order_of_their_elements(tmp_path: Path) -> None:
    base = torch.arange(12, dtype=torch.int32).reshape(3, 4)
    save(tmp_path / "a.pt", [base.T, base[:, 1:3], base[1], torch.tensor(7), torch.nn.Parameter(base.float())])
    found = load_torch_file(tmp_path / "a.pt")
    assert [item.data.tolist() for item in found[:4]] == [base.T.tolist(), base[:, 1:3].tolist(), base[1].tolist(), 7]
    assert found[4].dtype == "F32"


def test_plain_values_and_containers_come_as_they_are(tmp_path: Path) -> None:
    save(tmp_path / "a.pt", {"a": [1, "b", None, True, 2.5], 3: (4, torch.float32), "o": collections.OrderedDict(x=1)})
    assert load_torch_file(tmp_path / "a.pt") == {"a": [1, "b", None, True, 2.5], 3: [4, "torch.float32"], "o": {"x": 1}}


def test_tensors_of_a_zip_file_are_mapped_and_not_read(tmp_path: Path) -> None:
    save(tmp_path / "a.pt", {"x": torch.zeros(64 * 1024 * 1024, dtype=torch.uint8)})
    before = _resident()
    found = load_torch_file(tmp_path / "a.pt")["x"]
    assert found.data.nbytes == 64 * 1024 * 1024
    assert _resident() - before < 16 * 1024 * 1024
    assert not found.data[::4096].any()  # looked at, so that it is there now
    assert _resident() - before > 48 * 1024 * 1024


@pytest.mark.parametrize("zipped", [True, False])
def test_a_hostile_pickle_is_not_run(tmp_path: Path, zipped: bool) -> None:
    mark = tmp_path / "touched"
    torch.save({"x": torch.zeros(2), "y": Hostile(mark)}, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    message = refused(load_torch_file, tmp_path / "a.pt")
    assert "none of it was run" in message
    assert str(tmp_path / "a.pt") in message
    assert not mark.exists()


def test_a_bare_hostile_pickle_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "touched"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / "a.pt").write_bytes(pickle.dumps(Hostile(mark), protocol))
        refused(load_torch_file, tmp_path / "a.pt")
    assert not mark.exists()


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_no_reader_runs_a_hostile_pickle(tmp_path: Path, reader: Any) -> None:
    mark = tmp_path / "touched"
    names = {
        "sglang-tensor-dump": "TP0_PP0_Rank0_pid1/Pass00000.pt",
        "sglang-dumper": "step=0___rank=0___dump_index=1___name=x.pt",
        "sglang-module-calls": "model.layers.0.call000.pt",
        "slime-megatron": "rank00000/actor_Pass00000.pt",
        "safetensors": "x.safetensors",
    }
    save(tmp_path / "dump" / names[reader.name], {"layers": Hostile(mark)})
    assert reader.detect(tmp_path / "dump")
    refused(reader.open, tmp_path / "dump")
    assert not mark.exists()


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = save(tmp_path / "a.pt", {"x": torch.arange(1000), "y": [torch.ones(3)]}).read_bytes()
    for length in [*range(60), *range(60, len(whole), 97), len(whole) - 1]:
        (tmp_path / "b.pt").write_bytes(whole[:length])
        assert str(tmp_path / "b.pt") in refused(load_torch_file, tmp_path / "b.pt")


def test_flipped_bits_are_refused_or_change_numbers_only(tmp_path: Path) -> None:
    whole = bytearray(save(tmp_path / "a.pt", {"x": torch.arange(100)}).read_bytes())
    for at in range(0, len(whole), 37):
        flipped = bytearray(whole)
        flipped[at] ^= 0xFF
        (tmp_path / "b.pt").write_bytes(flipped)
        with contextlib.suppress(DumpError):  # nothing else gets out, and nothing ends the process
            load_torch_file(tmp_path / "b.pt")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"hello", b"\x80\x02", b"PK\x05\x06" + bytes(18), bytes(4096)])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.pt").write_bytes(content)
    assert str(tmp_path / "a.pt") in refused(load_torch_file, tmp_path / "a.pt")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    assert "a pipe" in refused(load_torch_file, tmp_path / "pipe.pt")
    assert "no such file" in refused(load_torch_file, tmp_path / "gone.pt")
    assert "a folder" in refused(load_torch_file, tmp_path)


def test_tensors_without_dense_data_are_refused(tmp_path: Path) -> None:
    for tensor, word in (
        (torch.zeros(2, dtype=torch.complex64), "complex64"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.zeros(2, device="meta"), "no usable data"),
        (torch.zeros(1).expand(2**50), "no usable data"),
    ):
        save(tmp_path / "a.pt", {"x": tensor})
        assert word in refused(load_torch_file, tmp_path / "a.pt")


def test_deep_nests_and_odd_names_are_refused(tmp_path: Path) -> None:
    nest: list[Any] = []
    for _ in range(30):
        nest = [nest]
    save(tmp_path / "a.pt", nest)
    assert "nested" in refused(load_torch_file, tmp_path / "a.pt")
    save(tmp_path / "b.pt", {(1, 2): 3})
    assert "neither text nor a number" in refused(load_torch_file, tmp_path / "b.pt")


NO_TORCH = "import sys; sys.modules['torch'] = None\n"


def test_the_engines_files_are_read_without_torch() -> None:
    script = (
        NO_TORCH + "from specalign.dump.opening import open_dump\nfrom pathlib import Path\n"
        f"dump = open_dump(Path({str(HOOKS / 'llama')!r}))\n"
        "print(sum(int(t.data.astype('u8').sum()) for i in dump.infos() for t in dump.load(i).values()), len(dump.infos()))"
    )
    dump = open_foreign(HOOKS / "llama")
    total = sum(int(t.data.astype("u8").sum()) for info in dump.infos() for t in dump.load(info).values())
    assert _python(script).split() == [str(total), str(len(dump.infos()))]
    assert total


def test_without_torch_an_old_file_names_the_extra(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "model.layers.0.call000.pt", _use_new_zipfile_serialization=False)
    script = (
        NO_TORCH + "from specalign.dump.readers import open_foreign\n"
        f"try: open_foreign({str(tmp_path)!r})\n"
        "except ValueError as error: print(type(error).__name__, error)"
    )
    printed = _python(script)
    assert printed.startswith("DumpError")
    assert "pytest-specalign[torch]" in printed


def test_a_list_that_names_itself_a_billion_times_is_refused(tmp_path: Path) -> None:
    nest: list[Any] = [0]
    for _ in range(15):
        nest = [nest] * 16
    save(tmp_path / "a.pt", nest)
    assert "of more than 10000000 values" in refused(load_torch_file, tmp_path / "a.pt")


def test_importing_the_readers_imports_no_torch() -> None:
    assert _python("import sys, specalign.dump.readers; print('torch' in sys.modules)").strip() == "False"


def test_a_loaded_tensor_is_what_readers_take(tmp_path: Path) -> None:
    save(tmp_path / "a.pt", torch.ones(2))
    assert isinstance(load_torch_file(tmp_path / "a.pt"), FileTensor)


def _resident() -> int:
    """Bytes of this process in memory, as Linux counts them."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _python(script: str) -> str:
    impl = str(Path(__file__).parents[4] / "impl")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((impl, *sys.path))}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return done.stdout

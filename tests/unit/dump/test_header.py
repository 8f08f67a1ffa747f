"""The document in the header of a pass: what is written is what is read, and nothing else is believed."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specalign.dump.dtypes import DTYPES
from specalign.dump.fields import SHARD_AXES, SITES
from specalign.dump.header import Layouts, read_pass_header
from specalign.dump.keys import INDEX_DTYPES
from specalign.dump.passes import RawTensor, TensorSpec
from specalign.dump.writer import DumpWriter
from tests.unit.dump.damaged import change_document, change_file, refusal, split
from tests.unit.dump.made import bits, boundaries, manifest, prefill, rows_of, tensor, write_dump

NAMES = ("boundary.0", "boundary.17", "post_norm", "logits", "module.layers.3.mlp", "module.ü", "routes.2")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A pass with a tensor, fingerprints, one of both, and fingerprints with counts."""
    data, masked = bits(3), bits(3)
    masked[1] = 0xFF80
    tensors = [
        tensor("boundary.1", data, site="pre-block"),
        tensor("boundary.2", data, site="post-block", fingerprint=True),
        tensor("post_norm", data),
        tensor("post_norm", data, fingerprint=True),
        tensor("logits", masked, fingerprint=True, counted=True),
    ]
    rows = prefill({"a": [1, 2], "b": [3]})
    write_dump(
        tmp_path, [(rows, tensors)], manifest=manifest(layout={"tp": 2}, world=2), coords=[("tp", 1)], stage=(1, 2), rank=1
    )
    return tmp_path / "rank00001" / "pass00000.safetensors"


def test_what_is_written_is_what_is_read(made: Path) -> None:
    header = read_pass_header(made)
    assert (header.rank, header.number, header.coords, header.stage) == (1, 0, (("tp", 1),), (1, 2))
    assert header.requests == ("a", "b")
    assert header.layout.rows == 3
    assert header.layout.tensors == {
        "boundary.1": TensorSpec("boundary.1", "BF16", (3, 8), "pre-block"),
        "boundary.2": TensorSpec("boundary.2", "BF16", (3, 8), "post-block", fingerprint=True),
        "post_norm": TensorSpec("post_norm", "BF16", (3, 8)),
        "logits": TensorSpec("logits", "BF16", (3, 8), fingerprint=True, counted=True),
    }
    assert header.layout.stored.keys() == {
        *INDEX_DTYPES, "boundary.1", "fingerprint.boundary.2", "post_norm", "fingerprint.post_norm",
        "fingerprint.logits", "nonfinite.logits",
    }  # fmt: skip
    for name in header.layout.stored:
        begin, end = header.span(name)
        assert header.checksum(name) == f"{zlib.crc32(made.read_bytes()[begin:end]):08x}"


def test_the_document_is_the_one_of_the_docs(made: Path) -> None:
    """Looked at without our reader: one metadata key, and a check over the bytes with its own digits as zeros."""
    data = made.read_bytes()
    header, _ = split(data)
    assert list(header["__metadata__"]) == ["specalign"]
    document = json.loads(header["__metadata__"]["specalign"])
    start = 8 + int.from_bytes(data[:8], "little")
    zeroed = data[:start].replace(document["check"].encode(), b"00000000", 1)
    assert document["check"] == f"{zlib.crc32(zeroed):08x}"
    assert document["schema"] == "specalign.dump/1"
    assert document["tensors"]["fingerprint.boundary.2"] == {"dtype": "BF16", "shape": [3, 8], "site": "post-block"}


@given(
    requests=st.lists(st.text(st.characters(exclude_categories=["Cs"])), unique=True, max_size=5),
    specs=st.lists(
        st.builds(
            TensorSpec,
            st.sampled_from(NAMES),
            st.sampled_from(sorted(DTYPES)),
            st.tuples(st.just(0), st.integers(0, 9)) | st.tuples(st.just(0)),
            st.sampled_from(SITES),
            st.sampled_from(SHARD_AXES),
            st.booleans(),
        ),
        unique_by=lambda spec: spec.key,
        max_size=5,
    ),
    stage=st.none() | st.tuples(st.integers(0, 9), st.integers(9, 20)),
)
def test_any_header_comes_back(
    tmp_path_factory: pytest.TempPathFactory, requests: list[str], specs: list[TensorSpec], stage: tuple[int, int] | None
) -> None:
    rows = rows_of([(name, at, 7, 0) for at, name in enumerate(requests)])
    specs = [TensorSpec(s.key, s.dtype, (len(rows), *s.shape[1:]), s.site, s.axis, s.fingerprint) for s in specs]
    tensors = [
        RawTensor(
            s,
            bits(len(rows), 2, "U64")
            if s.fingerprint
            else bits(1, len(rows) * (s.shape[1] if s.shape[1:] else 1), s.dtype).reshape(s.shape),
        )
        for s in specs
    ]
    folder = tmp_path_factory.mktemp("any")
    with DumpWriter(folder, manifest()) as writer:
        writer.write_pass(rows, tensors, stage=stage)
    header = read_pass_header(writer.folder / "pass00000.safetensors")
    assert header.requests == rows.request_ids
    assert header.stage == stage
    assert dict(header.layout.tensors) == {spec.key: spec for spec in specs}


def set_to(*path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        *parents, last = path
        for name in parents:
            document = document[name]
        document[last] = value

    return change


DOCUMENTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another schema": (set_to("schema", value="specalign.dump/2"), "specalign.dump/2"),
    "no schema": (lambda d: d.pop("schema"), "schema"),
    "a field is missing": (lambda d: d.pop("stage"), "stage"),
    "an unknown field": (set_to("surprise", value=1), "surprise"),
    "rank is a text": (set_to("rank", value="1"), "rank"),
    "rank is negative": (set_to("rank", value=-1), "rank"),
    "rank is true": (set_to("rank", value=True), "rank"),
    "pass is a fraction": (set_to("pass", value=0.5), "pass"),
    "coords is a list": (set_to("coords", value=[["tp", 1]]), "coords"),
    "an unknown axis": (set_to("coords", value={"vp": 1}), "coords"),
    "a negative place": (set_to("coords", value={"tp": -1}), "coords"),
    "stage is a number": (set_to("stage", value=3), "stage"),
    "stage has three parts": (set_to("stage", value=[1, 2, 3]), "stage"),
    "stage goes down": (set_to("stage", value=[2, 1]), "stage"),
    "stage of texts": (set_to("stage", value=["1", "2"]), "stage"),
    "requests is a text": (set_to("requests", value="ab"), "requests"),
    "a request is a number": (set_to("requests", value=["a", 1]), "requests"),
    "a request stands twice": (set_to("requests", value=["a", "a"]), "twice"),
    "a request is half a surrogate": (set_to("requests", value=["a", "\ud800"]), "requests"),
    "tensors is a list": (set_to("tensors", value=[]), "tensors"),
    "tensors holds a text": (set_to("tensors", "boundary.1", value="x"), "tensors"),
    "tensors says of a tensor that is not there": (set_to("tensors", "boundary.9", value={"site": "pre-block"}), "boundary.9"),
    "tensors says of the tokens": (set_to("tensors", "tokens", value={"axis": "hidden@tp"}), "tokens"),
    "an unknown field of a tensor": (set_to("tensors", "boundary.1", value={"colour": "red"}), "colour"),
    "an unknown site": (set_to("tensors", "boundary.1", "site", value="mid-block"), "site"),
    "a site that is no text": (set_to("tensors", "boundary.1", "site", value=["pre-block"]), "site"),
    "an unknown axis of a tensor": (set_to("tensors", "boundary.1", "axis", value="hidden@pp"), "axis"),
    "a dtype of a whole tensor": (set_to("tensors", "boundary.1", "dtype", value="F32"), "boundary.1"),
    "fingerprints without dtype": (lambda d: d["tensors"]["fingerprint.boundary.2"].pop("dtype"), "dtype"),
    "fingerprints of an unknown dtype": (set_to("tensors", "fingerprint.boundary.2", "dtype", value="F4"), "dtype"),
    "fingerprints of a list of dtypes": (set_to("tensors", "fingerprint.boundary.2", "dtype", value=["BF16"]), "dtype"),
    "fingerprints without shape": (lambda d: d["tensors"]["fingerprint.boundary.2"].pop("shape"), "shape"),
    "fingerprints of no rows": (set_to("tensors", "fingerprint.boundary.2", "shape", value=[]), "shape"),
    "fingerprints of other rows": (set_to("tensors", "fingerprint.boundary.2", "shape", value=[4, 8]), "boundary.2"),
    "fingerprints of too many axes": (set_to("tensors", "fingerprint.boundary.2", "shape", value=[3] + [1] * 16), "16 axes"),
    "fingerprints of a row beyond all memory": (set_to("tensors", "fingerprint.boundary.2", "shape", value=[3, 2**62, 0]), "2^59"),
    "fingerprints of a negative size": (set_to("tensors", "fingerprint.boundary.2", "shape", value=[3, -8]), "shape"),
    "counted that is no yes": (set_to("tensors", "fingerprint.boundary.2", "counted", value=False), "counted"),
    "counted that is a number": (set_to("tensors", "fingerprint.boundary.2", "counted", value=1), "counted"),
    "a whole tensor that was counted": (set_to("tensors", "boundary.1", "counted", value=True), "boundary.1"),
    "integers that were counted": (lambda d: d["tensors"]["fingerprint.boundary.2"].update(dtype="I16", counted=True), "floats"),
    "both of one key, of two types": (set_to("tensors", "fingerprint.post_norm", "dtype", value="F16"), "post_norm"),
    "crc32 is too short": (lambda d: d.update(crc32=d["crc32"][8:]), "crc32"),
    "crc32 is no hexadecimal": (lambda d: d.update(crc32="x" + d["crc32"][1:]), "crc32"),
    "crc32 is a number": (set_to("crc32", value=5), "crc32"),
}  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_bad_document_is_refused_by_file_and_field(made: Path, name: str) -> None:
    change, field = DOCUMENTS[name]
    change_document(made, change)
    refusal(lambda: read_pass_header(made), made, field)


def _drop(name: str) -> Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]:
    """Take out the last tensor of the file, `name`, with its data."""

    def change(header: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        begin, end = header.pop(name)["data_offsets"]
        for entry in header.values():
            if "data_offsets" in entry and entry["data_offsets"][0] >= end:
                entry["data_offsets"] = [offset - (end - begin) for offset in entry["data_offsets"]]
        return header, data[:begin] + data[end:]

    return change


def _rename(old: str, new: str) -> Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]:
    return lambda header, data: ({(new if name == old else name): entry for name, entry in header.items()}, data)


def _retype(name: str, dtype: str, shape: list[int]) -> Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]]:
    return lambda header, data: (header | {name: header[name] | {"dtype": dtype, "shape": shape}}, data)


ENTRIES: dict[str, tuple[Callable[[dict[str, Any], bytes], tuple[dict[str, Any], bytes]], str]] = {
    **{f"no {name}": (_drop(name), name) for name in INDEX_DTYPES},
    "tokens of another type": (_retype("tokens", "F64", [3]), "tokens"),
    "tokens of two axes": (_retype("tokens", "I64", [3, 1]), "tokens"),
    "a scalar number of tokens": (_retype("row_kind", "U8", [3, 1]), "row_kind"),
    "positions of another length": (_retype("positions", "I64", [1, 3]), "positions"),
    "no key of the format": (_rename("post_norm", "pre_norm"), "pre_norm"),
    "a boundary with a leading zero": (_rename("boundary.1", "boundary.01"), "boundary.1"),
    "a type that dumps do not hold": (_retype("boundary.1", "F8_E8M0", [3, 16]), "F8_E8M0"),
    "another number of rows": (_retype("boundary.1", "BF16", [6, 4]), "boundary.1 has 6 rows"),
    "fingerprints of another type": (_retype("fingerprint.post_norm", "I64", [3, 2]), "fingerprint.post_norm"),
    "fingerprints of three lanes": (_retype("fingerprint.post_norm", "U64", [2, 3]), "fingerprint.post_norm"),
    "counts of what was not counted": (_rename("fingerprint.logits", "nonfinite.boundary.2"), "fingerprint.logits"),
    "counts of no fingerprints": (_rename("nonfinite.logits", "nonfinite.post_norm"), "nonfinite.post_norm"),
    "counts of another type": (_retype("nonfinite.logits", "I32", [3, 2]), "nonfinite.logits"),
    "counts of another shape": (_retype("nonfinite.logits", "U32", [2, 3]), "nonfinite.logits"),
    "another metadata key": (lambda h, d: ({**h, "__metadata__": {**h["__metadata__"], "format": "pt"}}, d), "format"),
    "a tensor of too many axes": (_retype("boundary.1", "BF16", [3, 8] + [1] * 15), "16 axes"),
    "a hole": (lambda h, d: (h | {"row_kind": h["row_kind"] | {"data_offsets": [o + 1 for o in h["row_kind"]["data_offsets"]]}}, d + b"0"), "hole"),
    "bytes behind the last tensor": (lambda h, d: (h, d + b"0"), "behind"),
}  # fmt: skip


@pytest.mark.parametrize("name", ENTRIES)
def test_a_bad_table_of_tensors_is_refused_by_file_and_tensor(made: Path, name: str) -> None:
    change, field = ENTRIES[name]
    change_file(made, change)
    refusal(lambda: read_pass_header(made), made, field)


def test_known_layouts_make_no_difference_to_what_is_refused(made: Path) -> None:
    """The quick way through a layout that was seen must not skip what differs between two passes."""
    good = made.read_bytes()
    layouts: Layouts = {}
    first = read_pass_header(made, layouts)
    assert read_pass_header(made, layouts) == first
    assert read_pass_header(made, layouts).layout is first.layout
    for change, field in DOCUMENTS.values():
        made.write_bytes(good)
        change_document(made, change)
        refusal(lambda: read_pass_header(made, layouts), made, field)
    for alter, field in ENTRIES.values():
        made.write_bytes(good)
        change_file(made, alter)
        refusal(lambda: read_pass_header(made, layouts), made, field)
    made.write_bytes(good[:-1])
    refusal(lambda: read_pass_header(made, layouts), made, "cut off")


def test_few_layouts_are_kept(tmp_path: Path) -> None:
    layouts: Layouts = {}
    passes = [(prefill({"a": range(n)}), boundaries(n, [0])) for n in range(300)]
    write_dump(tmp_path, passes)
    for path in sorted((tmp_path / "rank00000").glob("*.safetensors")):
        assert read_pass_header(path, layouts).layout.rows == int(path.name[4:9])
    assert len(layouts) == 256


@pytest.mark.parametrize(
    ("share", "rows", "fine"), [(2, 4, True), (4, 4, True), (3, 4, False), (0, 4, False), (0, 0, True), (8, 4, False)]
)
def test_rows_under_sequence_parallelism_are_equal_shares(tmp_path: Path, share: int, rows: int, fine: bool) -> None:
    from specalign.dump.fields import check_rows

    spec = TensorSpec("boundary.1", "BF16", (share, 8), axis="tokens@sp")
    if fine:
        check_rows(spec, rows, "here")
    else:
        refusal(lambda: check_rows(spec, rows, "here"), "here", "boundary.1", share, rows)

"""What is said about weights that cannot be used, word for word, and where each limit lies."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from specalign.layer_ids import tensor_files
from specalign.layer_ids.files import InputError
from specalign.layer_ids.tensor_files import (
    MAX_HEADER_BYTES,
    MAX_INDEX_BYTES,
    MAX_INT_TENSOR_BYTES,
    TensorFacts,
    TensorInfo,
    pickled_weights,
    read_int_tensor,
    read_tensor_facts,
)
from tests.unit.safetensors_files import entry, facts_of, raw, refusal, serialize

INDEX = "model.safetensors.index.json"
AGAIN = "download it again"
WRITE = "write the file again"


def write_index(folder: Path, weight_map: object, name: str = INDEX) -> Path:
    (folder / name).write_text(json.dumps({"weight_map": weight_map}))
    return folder / name


def one(name: str, size: int = 1) -> bytes:
    return serialize({name: ("uint8", [size], bytes(size))})


def said(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        call()
    return str(caught.value)


# Which files


def test_hidden_files_are_nobodys_weights(tmp_path: Path) -> None:
    for name in (".model.safetensors", "._model.safetensors.header", ".x.safetensors.index.json"):
        (tmp_path / name).write_bytes(b"what other programs keep here")
    assert read_tensor_facts(tmp_path) is None


@pytest.mark.parametrize("name", ["model.safetensors.bak", "model.header", "index.json", "safetensors", "safetensors.header"])
def test_other_names_are_no_weights(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"something else")
    assert read_tensor_facts(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "pickle"),
    [
        ("pytorch_model.bin", True),
        ("pytorch_model-00001-of-00002.bin", True),
        ("pytorch_model.bin.index.json", False),
        ("training_args.bin", False),
        ("my_pytorch_model.bin", False),
    ],
)
def test_pickles_are_told_by_name(tmp_path: Path, name: str, pickle: bool) -> None:
    (tmp_path / name).write_bytes(b"never opened")
    assert pickled_weights(tmp_path) == ((name,) if pickle else ())


def test_files_are_read_in_order_of_name_and_a_prefix_only_without_its_file(tmp_path: Path) -> None:
    for name, tensor in (("b.safetensors", "b"), ("c.safetensors.header", "c"), ("a.safetensors.header", "a")):
        (tmp_path / name).write_bytes(one(tensor))
    (tmp_path / "b.safetensors.header").write_bytes(b"not looked at")
    facts = facts_of(tmp_path)
    assert [file.name for file in facts.files] == ["a.safetensors.header", "b.safetensors", "c.safetensors.header"]
    assert list(facts.tensors) == ["a", "b", "c"]
    assert facts.tensors["c"].file == tmp_path / "c.safetensors.header"
    assert (facts.listed, facts.unread) == (frozenset(), ())


@pytest.mark.parametrize(
    ("names", "complete"),
    [
        (["m-00001-of-00002", "m-00002-of-00002"], True),
        (["m-00001-of-00002"], False),
        (["m-00002-of-00002"], False),
        (["m-00001-of-00001"], True),
        (["m-00000-of-00002", "m-00001-of-00002"], True),  # counted, whichever number is the first
        (["m-00001-of-00002", "m-00002-of-00003"], False),
        (["m-00001-of-00002", "n-00002-of-00002"], False),
        (["m-00001-of-00001", "n-00001-of-00002"], False),
        (["m-0001-of-0002"], True),
        (["m-00001-of-00002-copy"], True),
        (["model", "m-00001-of-00002"], False),
    ],
)
@pytest.mark.parametrize("header", ["", ".header"])
def test_all_shards_of_a_numbering_make_it_complete(tmp_path: Path, names: list[str], complete: bool, header: str) -> None:
    for number, name in enumerate(names):
        (tmp_path / f"{name}.safetensors{header}").write_bytes(one(f"t{number}"))
    assert facts_of(tmp_path).complete is complete


def test_a_tensor_in_two_files_is_refused_with_both(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(one("x"))
    assert refusal(tmp_path) == (
        f"{tmp_path}/b.safetensors: the tensor 'x' is also in a.safetensors, and engines differ in which they load;"
        " keep one of the two files, or add an index"
    )


# The index


def test_several_indexes_are_refused_with_their_names(tmp_path: Path) -> None:
    for name in ("b.safetensors.index.json", "a.safetensors.index.json"):
        write_index(tmp_path, {"x": "s.safetensors"}, name)
    names = "a.safetensors.index.json, b.safetensors.index.json"
    assert refusal(tmp_path) == f"{tmp_path}: several indexes and no {INDEX}: {names}; keep one"


def test_an_index_without_its_map_is_refused(tmp_path: Path) -> None:
    index = write_index(tmp_path, {})
    says = f"{index}: has no weight_map from tensor names to shards; download the index again"
    assert refusal(tmp_path) == says
    index.write_text("{}")
    assert refusal(tmp_path) == says


@pytest.mark.parametrize("shard", ["../s.safetensors", "a\\s.safetensors", "a\0.safetensors", "s.bin", ".safetensor", 7])
def test_a_shard_outside_of_the_folder_is_refused_with_its_tensor(tmp_path: Path, shard: object) -> None:
    index = write_index(tmp_path, {"ok": "s.safetensors", "x": shard})
    says = f"{index}: maps 'x' to {shard!r}, which is no .safetensors file in this folder; correct it"
    assert refusal(tmp_path) == says


@pytest.mark.parametrize(("missing", "more"), [(1, ""), (2, " and 1 more"), (3, " and 2 more")])
def test_missing_shards_are_counted(tmp_path: Path, missing: int, more: str) -> None:
    shards = {f"t{number}": f"s{number}.safetensors" for number in range(missing)}
    index = write_index(tmp_path, {"here": "a.safetensors"} | shards)
    (tmp_path / "a.safetensors").write_bytes(one("here"))
    assert refusal(tmp_path) == (
        f"{index}: names the shard s0.safetensors{more}, which is not in the folder; download it, or its first bytes as"
        " s0.safetensors.header"
    )


def test_a_file_beside_the_index_is_unread_and_a_prefix_is_no_such_file(tmp_path: Path) -> None:
    write_index(tmp_path, {"a": "a.safetensors", "b": "b.safetensors"})
    (tmp_path / "a.safetensors").write_bytes(one("a"))
    (tmp_path / "b.safetensors.header").write_bytes(one("b"))
    for name in ("c.safetensors", "d.safetensors.header", "e.txt"):
        (tmp_path / name).write_bytes(b"not looked at")
    facts = facts_of(tmp_path)
    assert [file.name for file in facts.files] == ["a.safetensors", "b.safetensors.header"]
    assert facts.unread == (tmp_path / "c.safetensors",)
    assert facts.complete
    (tmp_path / "a.safetensors.header").write_bytes(b"not looked at: the file itself is here")
    assert [file.name for file in facts_of(tmp_path).files] == ["a.safetensors", "b.safetensors.header"]


def test_an_index_has_a_limit_of_its_own(tmp_path: Path) -> None:
    index = write_index(tmp_path, {"a": "a.safetensors"})
    with index.open("ab") as file:
        file.truncate(MAX_INDEX_BYTES + 1)
    says = f"{index}: {64 * 1024**2 + 1} bytes, more than the {64 * 1024**2} that are read here; is this the right file?"
    assert refusal(tmp_path) == says
    (tmp_path / "a.safetensors").write_bytes(one("a"))
    index.write_text('{"weight_map": {"a": "a.safetensors"}}' + " " * 17 * 1024**2)  # more than a config may have
    assert facts_of(tmp_path).complete


# Headers


def content(header: bytes, length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header


def test_the_shortest_header_is_an_empty_object(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content(b"{}"))
    assert facts_of(tmp_path).tensors == {}
    for length in (0, 1):
        file.write_bytes(content(b"{}", length))
        assert refusal(tmp_path) == f"{file}: its header length is {length}, too short for any header; {AGAIN}"


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_file_without_a_length_is_refused_with_its_size(tmp_path: Path, size: int) -> None:
    (tmp_path / "model.safetensors").write_bytes(bytes(size))
    says = f"{tmp_path}/model.safetensors: only {size} bytes, too short for a safetensors file; {AGAIN}"
    assert refusal(tmp_path) == says


def test_the_longest_header_is_read_and_a_longer_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_HEADER_BYTES == 32 * 1024**2
    file = tmp_path / "model.safetensors"
    monkeypatch.setattr(tensor_files, "MAX_HEADER_BYTES", 10)
    file.write_bytes(content(b"{}" + b" " * 8))
    assert facts_of(tmp_path).tensors == {}
    file.write_bytes(content(b"{}" + b" " * 9))
    assert refusal(tmp_path) == f"{file}: its header length is 11, over the limit of 10 bytes; is it safetensors?"


def test_a_header_that_is_cut_off_says_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content(b"{}", 3))
    says = "its header length is 3, but the file has 10 bytes: cut off or damaged;"
    assert refusal(tmp_path) == f"{file}: {says} {AGAIN}"
    file.unlink()
    prefix = tmp_path / "model.safetensors.header"
    prefix.write_bytes(content(b"{}", 3))
    assert refusal(tmp_path) == f"{prefix}: {says} fetch bytes 0-10"  # eleven bytes: the length and the header


def test_a_git_lfs_pointer_is_told(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert refusal(tmp_path) == f"{file}: is a Git LFS pointer, not the weights; next: git lfs pull"


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ({"__metadata__": 1}, f"header has a __metadata__ that does not map strings to strings; {WRITE}"),
        ({"a": 1}, f"header entry 'a' is no tensor: it needs dtype, shape and data_offsets; {WRITE}"),
        ({"a": entry(0, 1, [-1])}, f"header entry 'a' has the shape [-1], which is no list of sizes; {WRITE}"),
        ({"a": entry(2, 1, [1])}, f"header entry 'a' has the data_offsets [2, 1], which are no [begin, end]; {WRITE}"),
        (
            {"a": entry(0, 1), "b": entry(1, 5, [3], "F16")},
            f"header entry 'b' spans 32 bits, but F16 of shape [3] takes 48; the header is damaged, {WRITE}",
        ),
        (
            {"a": entry(0, 4, [2**63, 2])},
            f"header entry 'a' spans 32 bits, but U8 of shape [{2**63}, 2] takes over 2^64; the header is damaged, {WRITE}",
        ),
        (
            {"a": entry(0, 2), "b": entry(1, 3)},
            f"header entry 'b' overlaps the tensor before it (at byte 1 of the data); {WRITE}",
        ),
        (
            {"a": entry(0, 2), "b": entry(5, 6)},
            f"header entry 'b' leaves a hole of 3 bytes before it (at byte 5 of the data); {WRITE}",
        ),
    ],
)
def test_a_broken_header_is_refused_with_file_and_entry(tmp_path: Path, header: object, says: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(raw(header, bytes(9)))
    assert refusal(tmp_path) == f"{tmp_path}/model.safetensors: the safetensors {says}"


def test_an_unknown_dtype_is_refused_with_all_known_ones(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(raw({"a": entry(0, 1, dtype="F7")}, b"\0"))
    message = refusal(tmp_path)
    assert message.startswith(
        f"{tmp_path}/model.safetensors: the safetensors header entry 'a' has the unknown dtype 'F7'; known are"
    )
    known = message.partition("known are ")[2].split(", ")
    assert (known, len(known)) == (list(tensor_files.DTYPE_BITS), 22)


@pytest.mark.parametrize(
    ("there", "says"),
    [
        (3, f"is cut off: its header asks for 4 bytes of data and 3 are there; {AGAIN} (a prefix without the weights is named .safetensors.header)"),
        (5, f"goes on behind its last tensor: its header asks for 4 bytes of data and 5 are there; {AGAIN}"),
    ],
)  # fmt: skip
def test_a_file_of_another_size_than_its_header_says_is_refused(tmp_path: Path, there: int, says: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(raw({"a": entry(0, 4)}, bytes(there)))
    assert refusal(tmp_path) == f"{tmp_path}/model.safetensors: {says}"


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [([], "U8", 1), ([2**64 - 1, 0], "U8", 0), ([0, 2**64 - 1], "U8", 0), ([3, 5], "F4", None), ([4, 5], "F4", 10), ([1], "F4", None)],
)  # fmt: skip
def test_a_tensor_takes_its_elements_times_their_bits(tmp_path: Path, shape: list[int], dtype: str, size: int | None) -> None:
    (tmp_path / "model.safetensors").write_bytes(raw({"a": entry(0, size or 0, shape, dtype)}, bytes(size or 0)))
    if size is None:
        assert f"{dtype} of shape {shape} takes" in refusal(tmp_path)
    else:
        assert facts_of(tmp_path).shape("a") == tuple(shape)


def test_entries_may_stand_in_any_order(tmp_path: Path) -> None:
    header = {"b": entry(1, 3), "c": entry(3, 3, [0]), "a": entry(0, 1)}
    (tmp_path / "model.safetensors").write_bytes(raw(header, bytes(3)))
    start = 8 + len(json.dumps(header))
    spans = {name: info.span for name, info in facts_of(tmp_path).tensors.items()}
    assert spans == {"a": (start, start + 1), "b": (start + 1, start + 3), "c": (start + 3, start + 3)}


# Integer tables


def facts(dtype: str = "I64", span: tuple[int, int] | None = (0, 8), file: Path = Path("m.safetensors")) -> TensorFacts:
    return TensorFacts({"t": TensorInfo("t", dtype, (1,), file, span)}, (file, Path("n.safetensors")), complete=True)


def test_a_table_that_is_not_there_is_refused_with_the_files() -> None:
    assert said(lambda: read_int_tensor(facts(), "x")) == "no tensor 'x' in m.safetensors, n.safetensors"
    none = TensorFacts({}, (), complete=False, listed=frozenset({"t"}))
    assert said(lambda: read_int_tensor(none, "x")) == "no tensor 'x' in the index"
    assert read_int_tensor(none, "t") is None


@pytest.mark.parametrize("dtype", ["U64", "I16", "F64", "BOOL"])
def test_a_table_of_another_dtype_is_refused_even_where_its_data_is_not_here(dtype: str) -> None:
    says = f"m.safetensors: the tensor 't' is {dtype}, not I64 or I32, so it is no table of ids; convert it to int64"
    assert said(lambda: read_int_tensor(facts(dtype, None), "t")) == says
    assert read_int_tensor(facts("I64", None), "t") is None


def test_a_table_has_a_limit_in_bytes(tmp_path: Path) -> None:
    assert MAX_INT_TENSOR_BYTES == 8 * 1024**2
    file = tmp_path / "m.safetensors"
    file.write_bytes(bytes(2) + (7).to_bytes(8, "little", signed=True))
    table = facts(span=(2, 10), file=file)
    values = read_int_tensor(table, "t", limit=8)
    assert values is not None
    assert values.tolist() == [7]
    says = f"{file}: the tensor 't' has 8 bytes, more than the 7 that are read here; its shape is (1,)"
    assert said(lambda: read_int_tensor(table, "t", limit=7)) == says
    large = facts(span=(2, 2 + MAX_INT_TENSOR_BYTES + 1), file=file)
    assert "more than the 8388608 that are read here" in said(lambda: read_int_tensor(large, "t"))


def test_a_table_whose_file_got_shorter_is_refused_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    file.write_bytes(bytes(7))
    says = f"{file}: changed while it was read; run again when nobody writes to it"
    assert said(lambda: read_int_tensor(facts(file=file), "t")) == says


def test_names_and_shapes_of_facts() -> None:
    known = dataclasses.replace(facts(), listed=frozenset({"t", "u"}))
    assert known.names == {"t", "u"}
    assert (known.shape("t"), known.shape("u")) == ((1,), None)

"""The safetensors header reader, against files written by the `safetensors` package and against its own reader."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from pathlib import Path

import pytest
import safetensors
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specalign.layer_ids import tensor_files
from specalign.layer_ids.files import InputError
from specalign.layer_ids.tensor_files import DTYPE_BITS
from tests.unit.safetensors_files import HEAD, Tensors, entry, facts_of, raw, refusal, serialize

GIB = 1024**3

# Right values


def test_names_dtypes_and_shapes_are_those_that_the_reference_reader_gives(tmp_path: Path) -> None:
    content = serialize(HEAD, {"format": "pt"})
    (tmp_path / "model.safetensors").write_bytes(content)
    facts = facts_of(tmp_path)
    expected = {name: (view["dtype"], tuple(view["shape"])) for name, view in safetensors.deserialize(content)}
    assert {name: (info.dtype, info.shape) for name, info in facts.tensors.items()} == expected
    assert facts.files == (tmp_path / "model.safetensors",)
    assert facts.complete
    assert facts.shape("fc.weight") == (2, 6)
    assert facts.shape("midlayer.scale") == ()
    assert facts.shape("nothing") is None


def test_each_span_is_where_the_reference_reader_finds_the_data(tmp_path: Path) -> None:
    tensors: Tensors = {f"t{i}": ("uint8", [i], bytes([i] * i)) for i in range(5)}
    content = serialize(tensors)
    (tmp_path / "model.safetensors").write_bytes(content)
    for info in facts_of(tmp_path).tensors.values():
        assert info.span is not None
        assert content[slice(*info.span)] == tensors[info.name][2]


@pytest.mark.parametrize("dtype", DTYPE_BITS)
def test_every_dtype_has_the_size_that_the_reference_reader_gives_it(tmp_path: Path, dtype: str) -> None:
    content = raw({"a": entry(0, DTYPE_BITS[dtype], [8], dtype)}, bytes(DTYPE_BITS[dtype]))
    try:
        reference = safetensors.deserialize(content)
    except safetensors.SafetensorError as error:
        if "unknown variant" in str(error):
            pytest.skip(f"safetensors {safetensors.__version__} does not know {dtype} yet")
        raise
    (tmp_path / "model.safetensors").write_bytes(content)
    assert facts_of(tmp_path).tensors["a"].dtype == reference[0][1]["dtype"] == dtype


def test_no_other_dtype_is_known_to_the_reference_reader() -> None:
    with pytest.raises(safetensors.SafetensorError) as caught:
        safetensors.deserialize(raw({"a": entry(0, 1, dtype="NONE")}, b"\0"))
    assert set(str(caught.value).split("`")[3::2]) <= DTYPE_BITS.keys()


def test_a_file_without_tensors_is_legal(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(serialize({}))
    assert facts_of(tmp_path).tensors == {}


# Files that lie


ONE = entry(0, 1)
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "only 0 bytes"),
    "seven bytes": (b"\x02" + bytes(6), "only 7 bytes"),
    "length 0": (bytes(16), "header length is 0"),
    "length beyond the file": ((1000).to_bytes(8, "little") + b"{}", "header length is 1000, but the file has 10 bytes"),
    "length beyond the limit": ((2**63).to_bytes(8, "little") + b"{}", "over the limit of 33554432"),
    "length of all ones": (b"\xff" * 8 + b"{}", "over the limit of 33554432"),
    "length that cuts the header": ((5).to_bytes(8, "little") + raw({"a": ONE}, b"\0")[8:], "cut off at line 1"),
    "git lfs pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
    "web page": (b"<html><body>Entry not found</body></html>", "over the limit"),
    "no utf-8": (raw(b'{"\xff": 1}'), "not UTF-8"),
    "byte order mark": (raw(b"\xef\xbb\xbf{}"), "no valid JSON"),
    "no json": (raw(b"abc"), "no valid JSON"),
    "no object": (raw([1]), "a JSON list"),
    "padded with zeros": (raw(b"{}\0\0"), "no valid JSON"),
    "nested deep": (raw(b'{"a":' + b"[" * 100_000), "nested too deep"),
    "name twice": (raw(b'{"a": %s, "a": %s}' % ((json.dumps(ONE).encode(),) * 2), b"\0"), "'a' stands twice"),
    "surrogate in a name": (raw(b'{"\\ud800": %s}' % json.dumps(ONE).encode(), b"\0"), "is no tensor"),
    "metadata no object": (raw({"__metadata__": "pt", "a": ONE}, b"\0"), "__metadata__"),
    "metadata of numbers": (raw({"__metadata__": {"a": 1}, "a": ONE}, b"\0"), "__metadata__"),
    "entry no object": (raw({"a": 1}), "is no tensor"),
    "entry empty": (raw({"a": {}}), "unknown dtype None"),
    "dtype unknown": (raw({"a": entry(0, 1, dtype="F7")}, b"\0"), "unknown dtype 'F7'"),
    "dtype a list": (raw({"a": entry(0, 1, dtype=["U8"])}, b"\0"), "unknown dtype"),
    "shape missing": (raw({"a": {"dtype": "U8", "data_offsets": [0, 1]}}, b"\0"), "the shape None"),
    "shape negative": (raw({"a": entry(0, 1, [-1])}, b"\0"), "the shape [-1]"),
    "shape of floats": (raw({"a": entry(0, 1, [1.0])}, b"\0"), "the shape [1.0]"),
    "shape of bools": (raw({"a": entry(0, 1, [True])}, b"\0"), "the shape [True]"),
    "shape beyond 64 bits": (raw({"a": entry(0, 1, [2**64])}, b"\0"), "the shape"),
    "shape overflows": (raw({"a": entry(0, 0, [2**63, 2**63, 0])}), "takes over 2^64"),
    "shape nested deep": (raw(b'{"a":{"dtype":"U8","shape":' + b"[" * 300 + b"]" * 300 + b"}}"), "no list of sizes"),
    "shape of a million": (raw({"a": entry(0, 1, [2**62] * 1_000_000)}, b"\0"), "takes over 2^64"),
    "offsets one": (raw({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0]}}, b"\0"), "no [begin, end]"),
    "offsets three": (raw({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 2]}}, b"\0"), "no [begin, end]"),
    "offsets backwards": (raw({"a": entry(1, 0, [1])}, b"\0"), "no [begin, end]"),
    "size against shape": (raw({"a": entry(0, 4, [3])}, bytes(4)), "spans 32 bits, but U8 of shape [3] takes 24"),
    "half a byte": (raw({"a": entry(0, 2, [3], "F4")}, bytes(2)), "spans 16 bits, but F4 of shape [3] takes 12"),
    "overlap": (raw({"a": entry(0, 2), "b": entry(1, 3)}, bytes(3)), "'b' overlaps the tensor before it"),
    "hole": (raw({"a": entry(0, 1), "b": entry(3, 4)}, bytes(4)), "'b' leaves a hole of 2 bytes"),
    "hole at the start": (raw({"a": entry(1, 2)}, bytes(2)), "'a' leaves a hole of 1 bytes"),
    "data cut off": (raw({"a": entry(0, 4)}, bytes(3)), "asks for 4 bytes of data and 3 are there"),
    "data left over": (raw({"a": entry(0, 4)}, bytes(5)), "asks for 4 bytes of data and 5 are there"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "reason"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_refused_with_its_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert reason in refusal(tmp_path)


OURS_ALONE = {"name twice"}
"""The format forbids it ("duplicate keys are disallowed"), the reference reader takes it."""


@pytest.mark.parametrize("name", [name for name in BROKEN if name not in OURS_ALONE])
def test_the_reference_reader_refuses_the_same_files(name: str) -> None:
    with pytest.raises(safetensors.SafetensorError):
        safetensors.deserialize(BROKEN[name][0])


@pytest.mark.parametrize("length", [0, 2, 32 * 1024**2, 2 * GIB - 8, 2**64 - 1])
def test_a_sparse_file_of_two_gigabytes_costs_little_whatever_its_header_length(tmp_path: Path, length: int) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(length.to_bytes(8, "little"))
    os.truncate(file, 2 * GIB)
    tracemalloc.start()
    try:
        start = time.process_time()
        refusal(tmp_path)
        seconds = time.process_time() - start
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * tensor_files.MAX_HEADER_BYTES
    assert seconds < 5


def test_a_pipe_among_the_weights_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    assert "is a pipe" in refusal(tmp_path)


def test_a_loop_of_links_among_the_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    assert "loop of symbolic links" in refusal(tmp_path)


# Fuzzing, with the reference reader as the judge


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def judge(folder: Path, content: bytes) -> None:
    """Our reader gives facts or an InputError, and it agrees with the reference reader which, but for what is listed here."""
    (folder / "model.safetensors").write_bytes(content)
    try:
        ours = {name: (info.dtype, info.shape) for name, info in facts_of(folder).tensors.items()}
    except InputError:
        ours, why = None, refusal(folder)
    try:
        theirs = {name: (view["dtype"], tuple(view["shape"])) for name, view in safetensors.deserialize(content)}
    except safetensors.SafetensorError:
        theirs = None
    if ours is None and theirs is not None:
        assert "stands twice" in why  # we are stricter here
    elif ours is not None and theirs is None:
        assert any(mark in content for mark in (b"-0", b"NaN", b"Infinity", b"\\u"))  # Python's JSON is looser
    else:
        assert ours == theirs


@settings(deadline=None)
@given(content=st.binary() | st.binary().map(raw))
@example(raw(b"{}"))
@example(b"\x02\0\0\0\0\0\0\0{}")
def test_any_bytes_give_facts_or_one_clear_line(scratch: Path, content: bytes) -> None:
    judge(scratch, content)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid file with a few bytes replaced, dropped or put in, mostly within its header."""
    content = bytearray(serialize(HEAD, {"format": "pt"}))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content) - 1))
        piece = draw(st.sampled_from([b"", b"0", b"9", b"-", b'"', b",", b"[", b"]", b"{", b"}", b"U8", b"\\", b"\xff", b"\0"]))
        content[at : at + draw(st.integers(0, 2))] = piece
    if draw(st.booleans()):  # make the length right again, so that what follows it is looked at
        end = content.rfind(b"}") + 1
        content[:8] = max(0, end - 8).to_bytes(8, "little")
    return bytes(content)


@settings(deadline=None)
@given(content=mutated())
def test_a_mutated_file_gives_facts_or_one_clear_line(scratch: Path, content: bytes) -> None:
    judge(scratch, content)


SIZES = st.lists(st.integers(0, 4) | st.sampled_from([-1, 2**32, 2**63, True, 1.0, None]), max_size=3)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPE_BITS, "F7", 8]),
        "shape": SIZES,
        "data_offsets": SIZES | st.tuples(st.just(0), st.integers(0, 9)),
    }
)


@settings(deadline=None)
@given(
    header=st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), ENTRIES | st.none(), max_size=3), size=st.integers(0, 9)
)
@example({"a": entry(0, 0, [0]), "b": entry(0, 1)}, 1)
@example({"a": entry(0, 1), "b": entry(1, 1, [0])}, 1)
def test_an_invented_header_gives_facts_or_one_clear_line(scratch: Path, header: dict[str, object], size: int) -> None:
    judge(scratch, raw(header, bytes(size)))


@settings(deadline=None)
@given(
    tensors=st.dictionaries(
        st.text(min_size=1, max_size=8).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(["uint8", "int64", "bfloat16", "float8_e4m3fn"]), st.lists(st.integers(0, 3), max_size=3)),
        max_size=6,
    )
)
def test_every_file_that_the_reference_writer_makes_is_read(scratch: Path, tensors: dict[str, tuple[str, list[int]]]) -> None:
    width = {"uint8": 1, "int64": 8, "bfloat16": 2, "float8_e4m3fn": 1}
    full: Tensors = {}
    for name, (dtype, shape) in tensors.items():
        count = width[dtype]
        for size in shape:
            count *= size
        full[name] = (dtype, shape, bytes(count))
    (scratch / "model.safetensors").write_bytes(serialize(full))
    assert {name: list(info.shape) for name, info in facts_of(scratch).tensors.items()} == {n: s for n, (_, s) in tensors.items()}

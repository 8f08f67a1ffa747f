"""Which weight files of a folder are read, and the integer tables in them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import safetensors

from specalign.layer_ids.files import InputError
from specalign.layer_ids.tensor_files import pickled_weights, read_int_tensor, read_tensor_facts
from tests.unit.safetensors_files import HEAD, facts_of, refusal, serialize

INDEX = "model.safetensors.index.json"


def write_index(folder: Path, weight_map: object, name: str = INDEX) -> None:
    (folder / name).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))


# Which files


def test_a_folder_without_weights_gives_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert read_tensor_facts(tmp_path) is None
    assert pickled_weights(tmp_path) == ()


def test_pickles_are_named_and_never_read(tmp_path: Path) -> None:
    for name in ("pytorch_model-00002-of-00002.bin", "pytorch_model-00001-of-00002.bin", "training_args.bin"):
        (tmp_path / name).write_bytes(b"\x80\x04never unpickled")
    assert read_tensor_facts(tmp_path) is None
    assert pickled_weights(tmp_path) == ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")


def test_without_an_index_all_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes(serialize({"x": ("uint8", [1], b"1")}))
    (tmp_path / "b.safetensors").write_bytes(serialize({"y": ("uint8", [2], b"12")}))
    (tmp_path / "._b.safetensors").write_bytes(b"what macOS writes beside a file")
    facts = facts_of(tmp_path)
    assert (facts.shape("x"), facts.shape("y")) == ((1,), (2,))
    assert facts.complete


def test_without_an_index_a_gap_in_the_numbering_is_incomplete(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(serialize({"x": ("uint8", [1], b"1")}))
    assert not facts_of(tmp_path).complete
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(serialize({"y": ("uint8", [1], b"1")}))
    assert facts_of(tmp_path).complete


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(serialize({"x": ("uint8", [1], b"1")}))
    message = refusal(tmp_path)
    assert "'x' is also in a.safetensors" in message
    assert "b.safetensors" in message


def test_an_index_says_which_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "s1.safetensors").write_bytes(serialize({"x": ("uint8", [1], b"1")}))
    (tmp_path / "s2.safetensors").write_bytes(serialize({"y": ("uint8", [2], b"12")}))
    (tmp_path / "consolidated.safetensors").write_bytes(b"engines do not read this one either")
    write_index(tmp_path, {"x": "s1.safetensors", "y": "s2.safetensors"})
    facts = facts_of(tmp_path)
    assert facts.tensors.keys() == facts.listed == facts.names == {"x", "y"}
    assert facts.complete
    assert [file.name for file in facts.files] == ["s1.safetensors", "s2.safetensors"]
    assert [file.name for file in facts.unread] == ["consolidated.safetensors"]


def test_headers_win_over_a_stale_index(tmp_path: Path) -> None:
    (tmp_path / "s1.safetensors").write_bytes(serialize({"x": ("uint8", [1], b"1"), "x_scale": ("uint8", [1], b"1")}))
    write_index(tmp_path, {"x": "s1.safetensors", "gone": "s1.safetensors"})
    facts = facts_of(tmp_path)
    assert facts.tensors.keys() == {"x", "x_scale"}
    assert facts.names == {"x", "x_scale", "gone"}
    assert facts.shape("gone") is None


def test_a_missing_shard_is_refused_naming_shard_and_index(tmp_path: Path) -> None:
    (tmp_path / "s1.safetensors").write_bytes(serialize({"x": ("uint8", [1], b"1")}))
    write_index(tmp_path, {"x": "s1.safetensors", "y": "s2.safetensors", "z": "s3.safetensors"})
    message = refusal(tmp_path)
    assert INDEX in message
    assert "the shard s2.safetensors and 1 more" in message


def test_an_index_without_any_shard_is_refused_in_a_plain_folder(tmp_path: Path) -> None:
    write_index(tmp_path, {"x": "s1.safetensors"})
    assert "s1.safetensors" in refusal(tmp_path)


def test_an_index_alone_gives_the_names_in_a_cache_snapshot_which_holds_only_what_was_asked_for(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    write_index(snapshot, {"x": "s1.safetensors", "y": "s2.safetensors"})
    facts = facts_of(snapshot)
    assert (facts.names, facts.tensors, facts.complete) == ({"x", "y"}, {}, False)
    assert read_int_tensor(facts, "x") is None


def test_a_snapshot_with_some_shards_is_an_interrupted_download(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--org--name" / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (snapshot / "s1.safetensors").write_bytes(serialize({"x": ("uint8", [1], b"1")}))
    write_index(snapshot, {"x": "s1.safetensors", "y": "s2.safetensors"})
    assert "s2.safetensors" in refusal(snapshot)


def test_a_shard_that_is_a_broken_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s1.safetensors").symlink_to("../../blobs/gone")
    write_index(tmp_path, {"x": "s1.safetensors"})
    assert "broken link, nothing is at ../../blobs/gone" in refusal(tmp_path)


@pytest.mark.parametrize("shard", ["../s1.safetensors", "/etc/s1.safetensors", "a\\s.safetensors", "s1.bin", "", 7, None, ["s"]])
def test_an_index_cannot_point_out_of_its_folder(tmp_path: Path, shard: object) -> None:
    write_index(tmp_path, {"x": shard})
    assert "in this folder" in refusal(tmp_path)


@pytest.mark.parametrize("weight_map", [None, [], {}, "x"])
def test_an_index_without_a_weight_map_is_refused(tmp_path: Path, weight_map: object) -> None:
    write_index(tmp_path, weight_map)
    assert "no weight_map" in refusal(tmp_path)


def test_of_several_indexes_the_usual_one_is_taken_and_otherwise_none(tmp_path: Path) -> None:
    (tmp_path / "s1.safetensors").write_bytes(serialize({"x": ("uint8", [1], b"1")}))
    write_index(tmp_path, {"x": "s1.safetensors"}, "a.safetensors.index.json")
    assert facts_of(tmp_path).listed == {"x"}
    write_index(tmp_path, {"y": "gone.safetensors"}, "b.safetensors.index.json")
    assert "several indexes" in refusal(tmp_path)
    write_index(tmp_path, {"x": "s1.safetensors"})
    assert facts_of(tmp_path).complete


def test_a_shard_name_of_a_megabyte_gives_a_short_message(tmp_path: Path) -> None:
    write_index(tmp_path, {"x": "s" * 1_000_000 + ".safetensors"})
    assert "too long" in refusal(tmp_path)


def test_a_folder_that_cannot_be_listed_is_refused_and_not_called_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such file or folder" in refusal(tmp_path / "gone")

    # Planted, since modes do not stop root, whom CI containers run as.
    def deny(self: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", deny)
    assert "no permission" in refusal(tmp_path)


# Header prefixes


def test_a_header_prefix_gives_the_same_tensors_at_every_length_that_holds_the_header(tmp_path: Path) -> None:
    content = serialize(HEAD)
    header_end = 8 + int.from_bytes(content[:8], "little")
    expected = {name: (view["dtype"], tuple(view["shape"])) for name, view in safetensors.deserialize(content)}
    for length in range(header_end, len(content) + 1):
        (tmp_path / "model.safetensors.header").write_bytes(content[:length])
        facts = facts_of(tmp_path)
        assert {name: (info.dtype, info.shape) for name, info in facts.tensors.items()} == expected
        assert facts.complete
        for info in facts.tensors.values():
            assert info.span is None or info.span[1] <= length


def test_a_prefix_that_ends_within_the_header_says_how_much_to_fetch(tmp_path: Path) -> None:
    content = serialize(HEAD)
    header_end = 8 + int.from_bytes(content[:8], "little")
    (tmp_path / "model.safetensors.header").write_bytes(content[: header_end - 1])
    assert f"fetch bytes 0-{header_end - 1}" in refusal(tmp_path)


def test_a_prefix_longer_than_the_file_that_it_describes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.header").write_bytes(serialize(HEAD) + b"\0")
    assert "goes on behind its last tensor" in refusal(tmp_path)


def test_the_whole_file_wins_over_its_prefix(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(serialize(HEAD))
    (tmp_path / "model.safetensors.header").write_bytes(b"not looked at")
    assert facts_of(tmp_path).files == (tmp_path / "model.safetensors",)


def test_prefixes_stand_for_shards_and_the_rest_may_be_missing(tmp_path: Path) -> None:
    write_index(tmp_path, {"x": "s1.safetensors", "y": "s2.safetensors"})
    (tmp_path / "s1.safetensors.header").write_bytes(serialize({"x": ("uint8", [3], b"123")})[:-3])
    facts = facts_of(tmp_path)
    assert (facts.shape("x"), facts.shape("y"), facts.complete, facts.names) == ((3,), None, False, {"x", "y"})
    (tmp_path / "s2.safetensors.header").write_bytes(serialize({"y": ("uint8", [3], b"123")})[:-3])
    assert facts_of(tmp_path).complete


# Integer tensors


def test_d2t_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(serialize(HEAD))
    values = read_int_tensor(facts_of(tmp_path), "d2t")
    assert values is not None
    assert list(values) == [0, 3, -5, 2**40]


def test_i32_is_read_from_a_file(tmp_path: Path) -> None:
    data = b"".join(v.to_bytes(4, "little", signed=True) for v in (1, -1, 2**31 - 1))
    (tmp_path / "model.safetensors").write_bytes(serialize({"a": ("int32", [3], data)}))
    values = read_int_tensor(facts_of(tmp_path), "a")
    assert values is not None
    assert list(values) == [1, -1, 2**31 - 1]


def test_d2t_is_read_from_a_prefix_exactly_when_the_prefix_holds_it_whole(tmp_path: Path) -> None:
    content = serialize(HEAD)
    (tmp_path / "model.safetensors").write_bytes(content)
    span = facts_of(tmp_path).tensors["d2t"].span
    assert span is not None
    (tmp_path / "model.safetensors").unlink()
    prefix = tmp_path / "model.safetensors.header"
    prefix.write_bytes(content[: span[1] - 1])
    assert read_int_tensor(facts_of(tmp_path), "d2t") is None
    prefix.write_bytes(content[: span[1]])
    values = read_int_tensor(facts_of(tmp_path), "d2t")
    assert values is not None
    assert list(values) == [0, 3, -5, 2**40]


def test_a_big_endian_host_swaps_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors").write_bytes(serialize({"a": ("int64", [1], (1).to_bytes(8, sys.byteorder))}))
    facts = facts_of(tmp_path)
    monkeypatch.setattr(sys, "byteorder", "big" if sys.byteorder == "little" else "little")
    values = read_int_tensor(facts, "a")
    assert values is not None
    assert list(values) == [2**56]


def test_a_table_of_another_dtype_or_name_or_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(serialize(HEAD))
    facts = facts_of(tmp_path)
    with pytest.raises(InputError, match=r"'fc\.weight' is BF16, not I64 or I32"):
        read_int_tensor(facts, "fc.weight")
    with pytest.raises(InputError, match=r"no tensor 'lm_head' in model\.safetensors"):
        read_int_tensor(facts, "lm_head")
    with pytest.raises(InputError, match="has 32 bytes, more than the 31"):
        read_int_tensor(facts, "d2t", limit=31)


def test_a_file_cut_off_after_its_header_was_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(serialize(HEAD))
    facts = facts_of(tmp_path)
    os.truncate(file, facts.tensors["d2t"].span[1] - 1)  # type: ignore[index]
    with pytest.raises(InputError, match="changed while it was read"):
        read_int_tensor(facts, "d2t")

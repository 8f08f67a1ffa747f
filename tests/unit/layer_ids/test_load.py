"""From a folder to a `DraftSpec` or `TargetSpec`: which of its files are read, and what becomes of d2t."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specalign.layer_ids.files import InputError
from specalign.layer_ids.load import load_draft, load_target
from tests.unit.safetensors_files import HEAD as TENSORS
from tests.unit.safetensors_files import Tensors, serialize

DRAFT = {"architectures": ["XEagle3"], "hidden_size": 8}
TARGET = {"architectures": ["X"], "num_hidden_layers": 4, "hidden_size": 8}


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """A snapshot of org/name in a Hugging Face cache, with a config."""
    folder = tmp_path / "hub" / "models--org--name" / "snapshots" / "0123abc"
    folder.mkdir(parents=True)
    return write(folder, DRAFT)


def write(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_config_headers_and_d2t_of_a_folder_are_read(head: Path) -> None:
    (head / "model.safetensors").write_bytes(serialize(TENSORS))
    (head / "pytorch_model.bin").write_bytes(b"a pickle beside them, which nobody needs")
    loaded = load_draft(str(head))
    assert loaded.config == head / "config.json"
    assert (loaded.spec.name, loaded.spec.kind, loaded.spec.config) == ("org/name", "eagle3", DRAFT)
    assert loaded.spec.shape("fc.weight") == (2, 6)
    assert (loaded.spec.d2t, loaded.spec.pickles) == ([0, 3, -5, 2**40], ())


def test_the_cache_that_is_given_is_looked_into(head: Path, tmp_path: Path) -> None:
    write(head, DRAFT | TARGET)
    assert load_draft("org/name", hub_cache=tmp_path / "hub", kind="eagle").spec.kind == "eagle"
    write(head, TARGET)
    target = load_target("org/name", hub_cache=tmp_path / "hub")
    assert (target.name, target.num_layers) == ("org/name", 4)


def test_a_config_of_another_name_has_no_weights(tmp_path: Path) -> None:
    (tmp_path / "draft.json").write_text(json.dumps(DRAFT))
    (tmp_path / "model.safetensors").write_bytes(b"somebody else's, and broken")
    (tmp_path / "pytorch_model.bin").write_bytes(b"somebody else's")
    spec = load_draft(str(tmp_path / "draft.json")).spec
    assert (spec.name, spec.tensors, spec.d2t, spec.pickles) == (str(tmp_path / "draft.json"), None, None, ())


def test_pickles_are_named_where_nothing_else_is_there(head: Path) -> None:
    (head / "pytorch_model.bin").write_bytes(b"\x80\x04never unpickled")
    spec = load_draft(str(head)).spec
    assert (spec.tensors, spec.pickles) == (None, ("pytorch_model.bin",))


def test_an_index_without_any_header_says_nothing_about_the_weights(head: Path) -> None:
    (head / "model.safetensors.index.json").write_text('{"weight_map": {"d2t": "s1.safetensors"}}')
    (head / "pytorch_model.bin").write_bytes(b"\x80\x04never unpickled")
    spec = load_draft(str(head)).spec
    assert (spec.tensors, spec.d2t, spec.pickles) == (None, None, ("pytorch_model.bin",))


def test_some_headers_of_an_index_are_kept(head: Path) -> None:
    (head / "model.safetensors.index.json").write_text('{"weight_map": {"fc.weight": "1.safetensors", "x": "2.safetensors"}}')
    (head / "1.safetensors.header").write_bytes(serialize({"fc.weight": TENSORS["fc.weight"]}))
    spec = load_draft(str(head)).spec
    assert spec.tensors is not None
    assert (spec.shape("fc.weight"), spec.tensors.complete) == ((2, 6), False)


def test_a_file_without_tensors_is_a_head_without_tensors(head: Path) -> None:
    (head / "model.safetensors").write_bytes(serialize({}))
    spec = load_draft(str(head)).spec
    assert spec.tensors is not None
    assert (dict(spec.tensors.tensors), spec.d2t) == ({}, None)


def d2t(*values: int, name: str = "d2t") -> Tensors:
    return {name: ("int64", [len(values)], b"".join(v.to_bytes(8, "little", signed=True) for v in values))}


def test_d2t_may_be_named_below_model_and_the_plain_name_wins(head: Path) -> None:
    (head / "model.safetensors").write_bytes(serialize(d2t(1, 2, name="model.d2t")))
    assert load_draft(str(head)).spec.d2t == [1, 2]
    (head / "model.safetensors").write_bytes(serialize(d2t(1, 2, name="model.d2t") | d2t(3)))
    assert load_draft(str(head)).spec.d2t == [3]


def test_d2t_is_none_where_the_header_prefix_ends_before_it(head: Path) -> None:
    (head / "model.safetensors.header").write_bytes(serialize(d2t(1, 2))[:-1])
    spec = load_draft(str(head)).spec
    assert (spec.shape("d2t"), spec.d2t) == ((2,), None)


@pytest.mark.parametrize("shape", [[], [1, 1], [1, 1, 1]])
def test_d2t_of_other_dimensions_is_refused_with_its_file_and_shape(head: Path, shape: list[int]) -> None:
    (head / "model.safetensors").write_bytes(serialize({"d2t": ("int64", shape, bytes(8))}))
    with pytest.raises(InputError) as caught:
        load_draft(str(head))
    assert str(caught.value) == f"{head / 'model.safetensors'}: d2t must have one dimension, not shape {tuple(shape)}"

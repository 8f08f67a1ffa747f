"""The JSON Schema takes what the writer writes and refuses what the reader refuses."""

from __future__ import annotations

import copy
import json
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from specalign.dump.dtypes import DTYPES
from specalign.dump.fields import SHARD_AXES, SITES
from specalign.dump.header import MAX_AXES
from specalign.dump.manifest import AXES
from tests.unit.dump.damaged import split
from tests.unit.dump.made import bits, boundaries, manifest, prefill, tensor, write_dump
from tests.unit.dump.test_header import DOCUMENTS

SCHEMA = json.loads(resources.files("specalign").joinpath("schemas/dump-1.json").read_text("utf-8"))
PASS = SCHEMA["$defs"]["pass"]["properties"]
BEYOND_A_SCHEMA = {
    "a request is half a surrogate",
    "stage goes down",
    "tensors says of a tensor that is not there",
    "tensors says of the tokens",
    "fingerprints of other rows",
    "fingerprints of a row beyond all memory",
    "both of one key, of two types",
    "integers that were counted",
    "crc32 is too short",
}
"""What only a look at the whole file can tell."""


@pytest.fixture
def documents(tmp_path: Path) -> list[dict[str, Any]]:
    made = [
        *boundaries(3, [1], site="pre-block", axis="partial@tp"),
        tensor("boundary.2", bits(3), fingerprint=True),
        tensor("post_norm", bits(3)),
        tensor("post_norm", bits(3), fingerprint=True, counted=True),
    ]
    world = manifest(layout={"tp": 2}, world=2)
    write_dump(tmp_path, [(prefill({"a": [1, 2, 3]}), made)], manifest=world, coords=[("tp", 0)], stage=(1, 2))
    header, _ = split((tmp_path / "rank00000" / "pass00000.safetensors").read_bytes())
    texts = [
        (tmp_path / "manifest.json").read_text(),
        header["__metadata__"]["specalign"],
        (tmp_path / "rank00000/end.json").read_text(),
    ]
    return [json.loads(text) for text in texts]


def test_what_is_written_fits(documents: list[dict[str, Any]]) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for document in documents:
        jsonschema.validate(document, SCHEMA)


def test_the_words_are_those_of_the_code() -> None:
    said = PASS["tensors"]["additionalProperties"]["properties"]
    assert said["site"]["enum"] == list(SITES)
    assert said["axis"]["enum"] == list(SHARD_AXES)
    assert said["dtype"]["enum"] == list(DTYPES)
    assert said["shape"]["maxItems"] == MAX_AXES
    assert PASS["coords"]["propertyNames"]["enum"] == list(AXES)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_the_reader_refuses_does_not_fit(documents: list[dict[str, Any]], name: str) -> None:
    change, _ = DOCUMENTS[name]
    document = copy.deepcopy(documents[1])
    change(document)
    assert jsonschema.Draft202012Validator(SCHEMA).is_valid(document) == (name in BEYOND_A_SCHEMA)


@pytest.mark.parametrize(
    "change",
    [{"producer": 1}, {"versions": {"torch": 2}}, {"layout": {"vp": 2}}, {"layout": {"tp": 0}}, {"world": -1}, {"world": "2"}],
)
def test_a_manifest_that_is_refused_does_not_fit(documents: list[dict[str, Any]], change: dict[str, Any]) -> None:
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(documents[0] | change)

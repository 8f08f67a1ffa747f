"""The committed heads are what examples/train_head/README.md says, and take the states that they were trained on."""

from __future__ import annotations

import hashlib

import pytest

from specalign.layer_ids.load import load_draft
from specalign.speculate.head_states import head_states

from .conftest import HEADS, ROOT, TRAINED_ON, head_of, training_of


@pytest.mark.parametrize("name", TRAINED_ON)
def test_a_head_takes_what_it_was_trained_on(name: str, target) -> None:  # type: ignore[no-untyped-def]
    assert tuple(training_of(name)["boundaries"]) == TRAINED_ON[name]
    assert head_states(load_draft(str(HEADS / name)).spec, target.num_layers) == TRAINED_ON[name]
    head = head_of(name, target)
    assert (head.config.norm_before_fc, head.vocab.targets is not None) == (name == "A", name == "C")


@pytest.mark.parametrize("name", TRAINED_ON)
def test_weights_are_small_and_those_that_the_readme_names(name: str) -> None:
    file = HEADS / name / "model.safetensors"
    assert file.stat().st_size <= 13_000_000
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    row = next(line for line in (ROOT / "examples/train_head/README.md").read_text("utf-8").splitlines()
               if line.startswith(f"| {name} |") and "MB" in line)  # fmt: skip
    assert f"`{digest[:16]}…`" in row
    assert f"| {training_of(name)['acceptance_length']:.3f} |" in row
    assert training_of(name)["acceptance_length"] >= 2.0

"""SGLang's tensor dump: the passes of one form, which are placed once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from specalign.dump.readers import open_foreign, sglang_tensor_dump
from specalign.dump.readers.places import place
from tests.unit.dump.readers.foreign import assert_bits, info_fields, load_all, noise, real, refused
from tests.unit.dump.readers.test_sglang_tensor_dump import RANK, forward, normed, stock


def test_steps_of_one_form_are_placed_once_and_keep_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that lie in two files of one form: what the step returned, which is in the file behind it."""
    placed = []
    monkeypatch.setattr(sglang_tensor_dump, "place", lambda *args: placed.append(args[-1]) or place(*args))
    passes = [forward(1, 4), *(forward(seed, 1) for seed in range(2, 10))]
    infos = [info_fields([5, 6, 7, 8], [0, 1, 2, 3], [4]), *(info_fields([9], [4 + n], [5 + n]) for n in range(8))]
    logits = [noise(1, 32, seed=n) for n in range(9)]
    stock(tmp_path, list(zip(passes, infos, logits, strict=True)))
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 2}')
    dump = open_foreign(tmp_path)
    opened = len(placed)
    loaded = load_all(dump)
    for collected, tensors in zip(passes, loaded, strict=True):
        assert_bits(tensors["boundary.1"], collected["model.layers.1.input_layernorm"][1])  # type: ignore[index]
        assert_bits(tensors["boundary.2"], collected["model.norm"][1])  # type: ignore[index]
        assert_bits(tensors["post_norm"], normed(collected))
    for tensors, value in zip(loaded[1:-1], logits[1:-1], strict=True):
        assert_bits(tensors["logits"], value)
    assert opened < len(passes)
    assert len(placed) - opened < len(passes)
    changed = tmp_path / RANK / "Pass00007.pt"
    torch.save(real(changed) | {"model": noise(1, 8, seed=1)}, changed)
    assert "the output of model must hold the same bits" in refused(dump.load, dump.infos()[6])

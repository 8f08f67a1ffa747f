"""slime's Megatron dumps, made by hand as its dumper writes them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from specalign.dump.keys import RowKind
from specalign.dump.readers import open_foreign
from specalign.dump.readers.megatron_dump import open_megatron_dump
from tests.unit.dump.readers.foreign import assert_bits, load_all, noise, plain_rows, refused, save

TOKENS = [7, 8, 9, 4, 5, 0, 0, 0, 0]


def write(
    folder: Path,
    layers: dict[int, Tensor],
    *,
    rank: int = 0,
    number: int = 0,
    prefix: str = "actor_",
    tokens: object = None,
    cuts: object = (0, 3, 5, 7),
    modules: object = None,
) -> Path:
    content = {
        "store_prefix": prefix,
        "input_ids": torch.tensor([TOKENS]) if tokens is None else tokens,
        "cu_seqlens": torch.tensor(cuts, dtype=torch.int32) if isinstance(cuts, tuple) else cuts,
        "layers": layers,
        "modules": {} if modules is None else modules,
    }
    return save(folder / f"rank{rank:05d}" / f"{prefix}Pass{number:05d}.pt", content)


def test_packed_sequences_are_requests_and_what_lies_behind_is_padding(tmp_path: Path) -> None:
    value = noise(9, 1, 16)
    write(tmp_path, {0: value, 3: noise(9, 1, 16, seed=3)}, number=0)
    write(tmp_path, {0: noise(9, 1, 16, seed=4), 3: noise(9, 1, 16, seed=5)}, number=1)
    dump = open_foreign(tmp_path)
    rows = dump.rows(dump.infos()[0])
    assert rows.tokens.tolist() == TOKENS
    assert rows.positions.tolist()[:7] == [0, 1, 2, 0, 1, 0, 1]
    assert rows.request_ids == ("0/0/0", "0/0/1")
    assert rows.requests.tolist() == [0, 0, 0, 1, 1, -1, -1, -1, -1]
    assert rows.kinds.tolist() == [RowKind.PREFILL] * 5 + [RowKind.PADDING] * 4
    assert dump.rows(dump.infos()[1]).request_ids == ("0/1/0", "0/1/1")
    assert_bits(load_all(dump)[0]["boundary.1"], value[:, 0])
    assert set(dump.infos()[0].tensors) == {"boundary.1", "boundary.4"}


def test_the_rows_of_a_layer_are_those_of_its_tokens(tmp_path: Path) -> None:
    """Each row says which token it is: row r holds its own index in every channel."""
    value = torch.arange(9, dtype=torch.bfloat16)[:, None, None].expand(9, 1, 4).contiguous()
    write(tmp_path, {0: value})
    found = load_all(open_foreign(tmp_path))[0]["boundary.1"].data
    assert [int(row[0]) for row in found] == [int(v) & 0xFFFF for v in torch.arange(9).bfloat16().view(torch.int16)]


@pytest.mark.parametrize("shape", [(9, 1, 16), (9, 16)])
def test_sequence_first_and_flat_layers_are_the_same(tmp_path: Path, shape: tuple[int, ...]) -> None:
    value = noise(9, 16)
    write(tmp_path, {0: value.reshape(shape)}, tokens=torch.tensor(TOKENS))
    assert_bits(load_all(open_foreign(tmp_path))[0]["boundary.1"], value)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((1, 9, 16), "is batch first"),
        ((9, 2, 16), "holds a batch of 2, whose rows are interleaved"),
        ((3, 1, 16), "has 3 rows: sequence parallel"),
        ((10, 1, 16), "is no [s, 1, h] or [s, h]"),
        ((9,), "is no [s, 1, h] or [s, h]"),
        ((9, 1, 2, 8), "is no [s, 1, h] or [s, h]"),
    ],
)
def test_other_layouts_are_refused_by_name(tmp_path: Path, shape: tuple[int, ...], words: str) -> None:
    write(tmp_path, {0: noise(*shape)})
    message = refused(open_foreign, tmp_path)
    assert words in message
    assert f"layer 0 has shape {list(shape)} for 9 tokens" in message


def test_a_batch_of_several_sequences_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {0: noise(9, 2, 16)}, tokens=torch.tensor([TOKENS] * 2), cuts=None)
    assert "a batch of 2, whose rows Megatron interleaves" in refused(open_foreign, tmp_path)


def test_without_cuts_all_rows_are_one_sequence(tmp_path: Path) -> None:
    write(tmp_path, {0: noise(9, 1, 16)}, cuts=None)
    rows = open_foreign(tmp_path).rows(open_foreign(tmp_path).infos()[0])
    assert rows.positions.tolist() == list(range(9))
    assert rows.request_ids == ("0/0/0",)


@pytest.mark.parametrize(
    ("cuts", "words"),
    [((0, 18), "context parallel"), ((1, 9), "must begin at 0"), ((0, 5, 3), "never fall"), ((0,), "must begin at 0")],
)
def test_cuts_that_do_not_fit_are_refused(tmp_path: Path, cuts: tuple[int, ...], words: str) -> None:
    write(tmp_path, {0: noise(9, 1, 16)}, cuts=cuts)
    assert words in refused(open_foreign, tmp_path)


def test_empty_sequences_have_no_request(tmp_path: Path) -> None:
    write(tmp_path, {0: noise(9, 1, 16)}, cuts=(0, 0, 5, 5, 9))
    assert open_foreign(tmp_path).rows(open_foreign(tmp_path).infos()[0]).request_ids == ("0/0/1",)


def test_each_stage_holds_its_own_layers(tmp_path: Path) -> None:
    for rank in range(2):
        write(
            tmp_path,
            {2 * rank + i: noise(9, 1, 16, seed=i) for i in range(2)},
            rank=rank,
            modules={"decoder.layers.0.mlp": noise(9, 1, 4)},
        )
    dump = open_foreign(tmp_path)
    assert [set(info.tensors) for info in dump.infos()] == [{"boundary.1", "boundary.2"}, {"boundary.3", "boundary.4"}]
    assert dump.manifest.world == 2
    # decoder.layers.0 is another block on each stage.
    assert any("numbered within their pipeline stage" in note for note in dump.notes)


def test_modules_stand_beside_the_layers(tmp_path: Path) -> None:
    mlp, head = noise(9, 1, 4), noise(9, 1, 32).float()
    modules = {
        "decoder.layers.0.mlp": [mlp, None],
        "output_layer": head,
        "decoder.layers.0.router": [noise(9, 8), noise(9, 8)],
        "odd": noise(3, 2),
    }
    write(tmp_path, {0: noise(9, 1, 16)}, modules=modules)
    dump = open_foreign(tmp_path)
    tensors = load_all(dump)[0]
    assert set(tensors) == {
        "boundary.1",
        "module.layers.0.mlp",
        "module.layers.0.router.0",
        "module.layers.0.router.1",
        "module.output_layer",
    }
    assert_bits(tensors["module.layers.0.mlp"], mlp[:, 0])
    assert_bits(tensors["module.output_layer"], head[:, 0])
    assert dump.notes == ("module.odd is left out: not one row for each token (passes: 1)",)


def test_several_models_are_opened_one_at_a_time(tmp_path: Path) -> None:
    for prefix in ("actor_", "ref_"):
        write(tmp_path, {0: noise(9, 1, 16, seed=len(prefix))}, prefix=prefix)
    assert "holds passes of actor, ref; say which: prefix='actor'" in refused(open_foreign, tmp_path)
    assert_bits(load_all(open_megatron_dump(tmp_path, prefix="ref"))[0]["boundary.1"], noise(9, 1, 16, seed=4)[:, 0])
    assert "no rank<r>/old_Pass<n>.pt" in refused(open_megatron_dump, tmp_path, prefix="old")


def test_a_missing_pass_is_refused(tmp_path: Path) -> None:
    for number in (0, 2):
        write(tmp_path, {0: noise(9, 1, 16)}, number=number)
    assert "pass 1 is missing" in refused(open_foreign, tmp_path)


@pytest.mark.parametrize(
    "content",
    [[1], {"layers": {}}, {"input_ids": 1, "layers": [1]}, {"input_ids": 1, "layers": {"a": torch.zeros(1)}}, {"input_ids": 1, "layers": {0: 3}}],
)  # fmt: skip
def test_other_contents_are_refused(tmp_path: Path, content: object) -> None:
    save(tmp_path / "rank00000" / "actor_Pass00000.pt", content)
    assert "actor_Pass00000.pt" in refused(open_foreign, tmp_path)


def test_files_without_tokens_need_rows(tmp_path: Path) -> None:
    file = write(tmp_path, {0: noise(9, 1, 16)})
    save(file, {"input_ids": None, "layers": {0: noise(9, 1, 16)}})
    assert "takes input_ids from the model's keyword arguments" in refused(open_foreign, tmp_path)
    dump = open_foreign(tmp_path, rows={0: plain_rows(9)})
    assert dump.rows(dump.infos()[0]).request_ids == ("given",)


@pytest.mark.parametrize("modules", [[1], {"a": "text"}, {"a": [noise(9, 1, 2), 3]}])
def test_modules_that_hold_no_tensors_are_refused(tmp_path: Path, modules: object) -> None:
    write(tmp_path, {0: noise(9, 1, 16)}, modules=modules)
    assert "module" in refused(open_foreign, tmp_path)

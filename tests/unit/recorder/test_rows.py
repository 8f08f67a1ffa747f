"""Which row is what: against plain Python loops over the sequences."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import itertools

from torch import Tensor, nn

from specalign.recorder import RecordError, RowBatch, record_layers
from specalign.recorder.finding import find_rows, packed_rows, padded_rows
from specalign.recorder.names import RequestNames
from tests.unit.recorder.dumps import Block, Embedded, ids, only_pass, small


class Takes(nn.Module):
    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        past_key_values: Any = None,
        cu_seqlens: Any = None,
        packed_seq_params: Any = None,
    ) -> None: ...


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any, **kwargs: Any) -> None: ...


def found(*args: Any, names: RequestNames | None = None, model: nn.Module | None = None, **kwargs: Any) -> RowBatch:
    batch = find_rows(model or Takes(), args, kwargs, names or RequestNames(None))
    assert batch is not None
    return batch


def listed(batch: RowBatch) -> list[tuple[int, int, int, int]]:
    return list(zip(*(column.flatten().tolist() for column in batch._columns()), strict=True))


@pytest.mark.parametrize("lengths", [[3, 1, 4], [5], [0, 2, 0, 3], [8, 0], []], ids=str)
@pytest.mark.parametrize("padding", [0, 2])
def test_packed_sequences(lengths: list[int], padding: int) -> None:
    expected = [(place, request) for request, length in enumerate(lengths) for place in range(length)]
    edges = torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()], dtype=torch.int32)
    tokens = torch.arange(100, 100 + sum(lengths) + padding)
    batch = found(tokens[None], cu_seqlens=edges)
    rows = listed(batch)
    assert [row[0] for row in rows] == tokens.tolist()
    assert [(row[1], row[2]) for row in rows[: len(expected)]] == expected
    assert all(row[3] == 0 for row in rows[: len(expected)])
    assert all(row[2:] == (-1, 2) for row in rows[len(expected) :])
    assert batch.request_ids == tuple(f"pass0/{place}" for place in range(len(lengths)))


def test_packed_sequences_with_padding_between_them() -> None:
    lengths, begins = [3, 1, 4], [0, 4, 8, 12]
    params = SimpleNamespace(cu_seqlens_q=torch.tensor([0, 3, 4, 8]), cu_seqlens_q_padded=torch.tensor(begins))
    rows = listed(found(torch.arange(12)[None], packed_seq_params=params))
    for request, (begin, length) in enumerate(zip(begins, lengths, strict=False)):
        for place in range(4):
            real = place < length
            assert rows[begin + place][2:] == ((request, 0) if real else (-1, 2))
            assert not real or rows[begin + place][1] == place


@pytest.mark.parametrize("size", [1, 2, 4])
def test_context_parallel_ranks_hold_every_position_once(size: int) -> None:
    begins = [0, 16, 24, 56]
    whole = torch.arange(1000, 1056)
    seen: list[tuple[int, int, int]] = []
    for rank in range(size):
        held = []
        for begin, end in itertools.pairwise(begins):  # Megatron: 2 * size chunks a sequence, the rank-th from either end
            chunks = whole[begin:end].chunk(2 * size)
            held += [chunks[rank], chunks[2 * size - 1 - rank]]
        tokens = torch.cat(held)
        rows = listed(packed_rows(tokens, torch.tensor(begins), None, RequestNames(None), cp=(rank, size)))
        seen += [(row[2], row[1], row[0]) for row in rows]
        assert [row[0] for row in rows] == tokens.tolist()
    expected = [
        (request, place, 1000 + begins[request] + place)
        for request in range(3)
        for place in range(begins[request + 1] - begins[request])
    ]
    assert sorted(seen) == sorted(expected)


@pytest.mark.parametrize("side", ["left", "right", "none"])
@pytest.mark.parametrize("past", [0, 3])
def test_padded_sequences(side: str, past: int) -> None:
    lengths, width = [2, 5], 5
    mask = torch.zeros(2, past + width, dtype=torch.long)
    for row, length in enumerate(lengths):
        where = slice(width - length + past, None) if side == "left" else slice(0, past + length)
        mask[row, where] = 1
        if side == "left":
            mask[row, past - 1 + width - length :] = 1
    if side == "none":
        mask[:] = 1
    cache = SimpleNamespace(get_seq_length=lambda: past)
    tokens = ids(2, width)
    rows = listed(found(tokens, attention_mask=mask, past_key_values=cache if past else None))
    place = 0
    for request in range(2):
        before = int(mask[request, :past].sum())
        for column in range(width):
            real = bool(mask[request, past + column])
            assert rows[place][0] == int(tokens[request, column])
            assert rows[place][2:] == ((request, 0) if real else (-1, 2))
            if real:
                assert rows[place][1] == before
                before += 1
            place += 1


def test_position_ids_count_where_there_is_no_mask() -> None:
    batch = found(ids(2, 3), position_ids=torch.tensor([[4, 5, 6]]))
    assert batch.positions.tolist() == [[4, 5, 6]] * 2


def test_a_wrapper_that_passes_everything_on_has_the_names_of_what_it_wraps() -> None:
    batch = found(ids(1, 2), torch.ones(1, 2), model=Wrapper(Wrapper(Takes())))
    assert batch.kinds.tolist() == [[0, 0]]


def test_a_cache_keeps_the_names_of_its_sequences() -> None:
    class Cache:
        length = 0

    names, one, other = RequestNames(None), Cache(), Cache()
    for cache in (one, other):
        found(ids(2, 3), past_key_values=cache, names=names)
        cache.length = 3
        names.forward += 1
    assert found(ids(2, 1), past_key_values=one, names=names).request_ids == ("pass0/0", "pass0/1")
    assert found(ids(2, 1), past_key_values=other, names=names).request_ids == ("pass1/0", "pass1/1")
    assert found(ids(2, 1), past_key_values=SimpleNamespace(length=3), names=names).request_ids == ("pass1/0", "pass1/1")
    with pytest.raises(RecordError, match="with 3 sequences, and 2 filled the cache"):
        found(ids(3, 1), past_key_values=one, names=names)
    with pytest.raises(RecordError, match="names 1 requests and this forward has 2"):
        found(ids(2, 1), names=RequestNames(["a"]))


REFUSED = {
    "embeddings": ((None,), {}, "got no input_ids or tokens"),
    "one axis": ((torch.arange(3),), {}, r"input_ids is \[3\], and no cu_seqlens"),
    "a mask of another length": ((torch.zeros(2, 3, dtype=int),), {"attention_mask": torch.ones(2, 4)}, r"need \[2, 3\]"),
    "a cache of unknown length": ((torch.zeros(2, 3, dtype=int),), {"past_key_values": object()}, "does not say how many"),
}


@pytest.mark.parametrize(("args", "kwargs", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_known_is_refused_and_says_what_to_pass(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(RecordError, match=message) as caught:
        found(*args, **kwargs)
    assert "rows=lambda args, kwargs: RowBatch(" in str(caught.value)


def test_columns_of_a_batch_must_agree() -> None:
    with pytest.raises(RecordError, match=r"have the shapes \[\[2\], \[3\], \[2\], \[2\]\]"):
        RowBatch([1, 2], [1, 2, 3], [0, 0], [0, 0], ("a",))  # type: ignore[arg-type]
    with pytest.raises(RecordError, match=r"are integers, and one is torch.float32"):
        RowBatch([1, 2], [0.5, 1], [0, 0], [0, 0], ("a",))  # type: ignore[arg-type]


def test_sequences_packed_without_a_word_are_found_out_when_their_rows_arrive(tmp_path: Path) -> None:
    model = small()
    with (
        pytest.raises(RecordError, match="rows 0 and 2 are both position 0 of request 'pass0/0'"),
        record_layers(model, tmp_path / "d"),
        torch.no_grad(),
    ):
        model(ids(1, 5), position_ids=torch.tensor([[0, 1, 0, 1, 2]]))


def test_packed_sequences_reach_the_dump(tmp_path: Path) -> None:
    model = small()
    with torch.no_grad(), record_layers(model, tmp_path / "d", layers=[2]):
        model(ids(1, 5), cu_seqlens=torch.tensor([0, 2, 4]))
    read = only_pass(tmp_path / "d")
    assert read.rows.positions.tolist()[:4] == [0, 1, 0, 1]
    assert read.rows.requests.tolist() == [0, 0, 1, 1, -1]
    assert read.rows.kinds.tolist() == [0, 0, 0, 0, 2]
    assert read["boundary.3"].shape == (5, 8)


def test_a_callers_rows_are_taken_as_they_are(tmp_path: Path) -> None:
    model = Embedded([Block()])
    seen: list[Tensor] = []

    def rows(args: Any, kwargs: Any) -> RowBatch:
        seen.append(args[0])
        return RowBatch([9, 8], [4, 0], [1, 0], [1, 3], ("health", "b"))  # type: ignore[arg-type]

    with torch.no_grad(), record_layers(model, tmp_path / "d", rows=rows):
        model(ids(1, 2))
    read = only_pass(tmp_path / "d")
    assert len(seen) == 1
    assert (read.rows.tokens.tolist(), read.rows.positions.tolist()) == ([9, 8], [4, 0])
    assert (read.rows.requests.tolist(), read.rows.kinds.tolist()) == ([1, 0], [1, 3])


def test_a_mask_that_hides_padding_is_refused() -> None:
    """One mask a sequence, in the form that attention takes: which tokens are padding does not stand in it."""
    mask = torch.zeros(2, 1, 3, 3)
    with pytest.raises(RecordError, match=r"attention_mask is \[2, 1, 3, 3\], and only \[batch, tokens\] tells"):
        padded_rows(torch.tensor([[0, 5, 6], [7, 8, 9]]), {"attention_mask": mask}, RequestNames(None))


def test_a_causal_mask_for_all_sequences_says_nothing_of_padding() -> None:
    """Megatron's, with position_ids beside it."""
    named = {"attention_mask": torch.ones(1, 1, 3, 3).triu(1).bool(), "position_ids": torch.arange(3).expand(2, 3)}
    rows = padded_rows(torch.tensor([[4, 5, 6], [7, 8, 9]]), named, RequestNames(None))
    assert rows.positions.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_a_copied_cache_has_nobody_s_names() -> None:
    class Cache:
        def get_seq_length(self) -> int:
            return 3

    first, other = Cache(), Cache()
    names = RequestNames(None)
    names.next(1, None, 0)
    names.remember(first)
    assert names.next(1, first, 3) == ("pass0/0",)
    with pytest.raises(RecordError, match="that no recorded forward filled"):
        names.next(1, other, 3)

"""Whose rows are whose: with request ids as they say, without them only where there is one answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specalign.dump.keys import RowKind
from specalign.dump.readers.requests import Batch, Segmenter, forward_mode
from specalign.dump.rows import Rows
from tests.unit.dump.readers.foreign import refused

P, D, PAD, HEALTH = RowKind.PREFILL, RowKind.DECODE, RowKind.PADDING, RowKind.HEALTH_CHECK


def batch(tokens: list[int], positions: list[int], mode: str = "", **fields: Any) -> Batch:
    arrays = {name: np.array(value, np.int64) for name, value in fields.items() if name != "rids"}
    rids = tuple(fields["rids"]) if "rids" in fields else None
    return Batch(np.array(tokens, np.int64), np.array(positions, np.int64), rids=rids, mode=mode, **arrays)


def prefill(*sequences: tuple[int, list[int]], **fields: Any) -> Batch:
    """A prefill pass of (first position, tokens) a sequence."""
    tokens = [token for _, sequence in sequences for token in sequence]
    positions = [first + i for first, sequence in sequences for i in range(len(sequence))]
    lengths = [first + len(sequence) for first, sequence in sequences]
    return batch(tokens, positions, "extend", seq_lens=lengths, **fields)


def decode(*rows: tuple[int, int], **fields: Any) -> Batch:
    """A decode pass of (position, token) a row."""
    return batch([t for _, t in rows], [p for p, _ in rows], "decode", seq_lens=[p + 1 for p, _ in rows], **fields)


def names(rows: Rows) -> list[str | None]:
    return [None if r < 0 else rows.request_ids[r] for r in rows.requests.tolist()]


def kinds(rows: Rows) -> list[int]:
    return rows.kinds.tolist()


# With request ids


def test_request_ids_say_whose_rows_are_whose() -> None:
    segmenter = Segmenter()
    first = segmenter.rows(batch([7, 8, 9, 7, 8], [0, 1, 2, 4, 5], "extend", rids=["a", "b"], extend=[3, 2]))
    assert names(first) == ["a", "a", "a", "b", "b"]
    assert kinds(first) == [P] * 5
    second = segmenter.rows(batch([1, 2], [6, 3], "decode", rids=["b", "a"]))
    assert (names(second), kinds(second)) == (["b", "a"], [D, D])
    assert list(segmenter.notes) == ["some requests begin behind position 0: their prefix was cached, or passes are missing"]


def test_health_checks_are_marked() -> None:
    rows = Segmenter().rows(batch([99, 7, 8], [0, 0, 1], "extend", rids=["HEALTH_CHECK_17.5", "a"], extend=[1, 2]))
    assert kinds(rows) == [HEALTH, P, P]
    assert rows.counted.tolist() == [False, True, True]


def test_rows_behind_the_last_sequence_are_padding_if_they_are_zero() -> None:
    rows = Segmenter().rows(batch([7, 8, 0, 0], [0, 1, 0, 0], "extend", rids=["a"], extend=[2]))
    assert (names(rows), kinds(rows)) == (["a", "a", None, None], [P, P, PAD, PAD])
    assert "neither" in refused(Segmenter().rows, batch([7, 8, 5], [0, 1, 0], "extend", rids=["a"], extend=[2]))


def test_a_decode_batch_may_be_filled_up() -> None:
    segmenter = Segmenter()
    segmenter.rows(prefill((0, [5]), rids=["a"]))
    rows = segmenter.rows(batch([6, 0, 0], [1, 0, 0], "decode", rids=["a"], seq_lens=[2, 1, 1]))
    assert (names(rows), kinds(rows)) == (["a", None, None], [D, PAD, PAD])


def test_chunks_and_mixed_passes() -> None:
    segmenter = Segmenter()
    segmenter.rows(batch([1, 2, 3], [0, 1, 2], "extend", rids=["a"], extend=[3]))
    rows = segmenter.rows(batch([4, 5, 9, 9], [3, 0, 1, 2], "mixed", rids=["a", "b"], extend=[1, 3]))
    assert (names(rows), kinds(rows)) == (["a", "b", "b", "b"], [D, P, P, P])


def test_a_retracted_request_is_prefilled_again_and_a_hole_is_refused() -> None:
    segmenter = Segmenter()
    segmenter.rows(batch([1, 2, 3], [0, 1, 2], "extend", rids=["a"], extend=[3]))
    segmenter.rows(batch([4], [3], "decode", rids=["a"]))
    segmenter.rows(batch([3, 4, 5], [2, 3, 4], "extend", rids=["a"], extend=[3]))
    for mode, rids in (("decode", {}), ("extend", {"extend": [1]})):
        assert "5 is its next" in refused(segmenter.rows, batch([7], [6], mode, rids=["a"], **rids))
    assert "5 is its next" in refused(segmenter.rows, batch([7], [4], "decode", rids=["a"]))


def test_a_decode_without_a_prefill_is_noted() -> None:
    segmenter = Segmenter()
    assert names(segmenter.rows(batch([7], [6], "decode", rids=["a"]))) == ["a"]
    assert any("begin behind position 0" in note for note in segmenter.notes)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (batch([1, 2], [0, 1], "extend", rids=["a", "a"], extend=[1, 1]), "stands twice"),
        (batch([1, 2], [0, 1], "extend", rids=["a"], extend=[1, 1]), "1 request ids for 2 sequences"),
        (batch([1, 2], [0, 1], "extend", rids=["a"], extend=[3]), "should have 3 rows"),
        (batch([1, 2], [0, 1], "extend", rids=["a"], extend=[-1]), "should have -1 rows"),
        (batch([1, 2], [0, 2], "extend", rids=["a"], extend=[2]), "do not follow on"),
        (batch([1, 2], [-1, 0], "extend", rids=["a"], extend=[2]), "do not follow on"),
        (batch([1, 2], [0, 1], "extend", rids=["a"]), "record seq_lens"),
        (batch([1, 2], [0, 1], "extend", rids=["a"], extend=[2], seq_lens=[3]), "ends at position 1"),
        (batch([1, 2], [0, 1]), "record seq_lens"),
        (batch([1, 2], [3, 4], seq_lens=[3]), "is 3 long and begins at position 3"),
        (batch([1, 2], [0, 1], seq_lens=[2, 4]), "lists 2 sequences"),
    ],
)
def test_passes_that_contradict_themselves_are_refused(made: Batch, words: str) -> None:
    assert words in refused(Segmenter().rows, made)


# Without request ids


def test_prefill_rows_are_cut_by_length_even_where_positions_go_on() -> None:
    # The second sequence's cached prefix ends just where the first sequence ends.
    rows = Segmenter().rows(prefill((0, [1, 2, 3, 4]), (4, [5, 6]), (0, [7])))
    assert names(rows) == ["request-0"] * 4 + ["request-1"] * 2 + ["request-2"]
    assert kinds(rows) == [P] * 7


def test_decode_rows_continue_the_request_whose_next_position_it_is() -> None:
    segmenter = Segmenter()
    segmenter.rows(prefill((0, [1, 2, 3]), (0, [4, 5])))
    assert names(segmenter.rows(decode((2, 9), (3, 8)))) == ["request-1", "request-0"]
    assert names(segmenter.rows(decode((3, 9), (4, 8)))) == ["request-1", "request-0"]
    assert any("no request ids" in note for note in segmenter.notes)


def test_two_requests_at_one_position_cannot_be_told() -> None:
    segmenter = Segmenter()
    segmenter.rows(prefill((0, [1, 2, 3]), (0, [4, 5, 6])))
    message = refused(segmenter.rows, decode((3, 9), (3, 8)))
    assert "request-0 or request-1" in message
    assert "record rids" in message


def test_slots_of_the_request_pool_tell_them_apart() -> None:
    segmenter = Segmenter()
    segmenter.rows(prefill((0, [1, 2, 3]), (0, [4, 5, 6]), slots=[8, 4]))
    assert names(segmenter.rows(decode((3, 9), (3, 8), slots=[4, 8]))) == ["request-1", "request-0"]


def test_requests_with_the_same_tokens_so_far_may_be_taken_in_any_order() -> None:
    segmenter = Segmenter()
    segmenter.rows(prefill((0, [1, 2, 3]), (0, [1, 2, 3])))
    assert names(segmenter.rows(decode((3, 9), (3, 8)))) == ["request-0", "request-1"]
    assert "could continue" in refused(segmenter.rows, decode((4, 1), (4, 2)))


def test_a_request_that_a_decode_pass_leaves_out_has_ended() -> None:
    segmenter = Segmenter()
    segmenter.rows(prefill((0, [1, 2, 3])))
    segmenter.rows(decode((3, 9)))
    segmenter.rows(prefill((0, [4, 5, 6])))
    assert names(segmenter.rows(decode((3, 8)))) == ["request-1"]
    # request-0 has come as far as 4 too, and no longer runs.
    assert names(segmenter.rows(decode((4, 8)))) == ["request-1"]


def test_with_microbatches_it_may_run_on() -> None:
    segmenter = Segmenter(microbatches=True)
    segmenter.rows(prefill((0, [1, 2, 3])))
    segmenter.rows(decode((3, 9)))
    segmenter.rows(prefill((0, [4, 5, 6])))
    segmenter.rows(decode((3, 8)))
    assert "request-0 or request-1" in refused(segmenter.rows, decode((4, 8)))


def test_a_decode_row_that_continues_nothing_is_refused() -> None:
    segmenter = Segmenter()
    segmenter.rows(prefill((0, [1, 2, 3])))
    assert "passes are missing" in refused(segmenter.rows, decode((4, 9)))
    assert "passes are missing" in refused(Segmenter().rows, decode((4, 9)))


def test_a_chunk_goes_on_with_its_request_where_nothing_else_could_be_meant() -> None:
    segmenter = Segmenter()
    segmenter.rows(prefill((0, [1, 2, 3])))
    assert names(segmenter.rows(prefill((3, [4, 5])))) == ["request-0"] * 2
    assert names(segmenter.rows(decode((5, 9)))) == ["request-0"]


def test_a_chunk_may_wait_through_a_decode_pass() -> None:
    segmenter = Segmenter()
    segmenter.rows(prefill((0, [7, 8])))
    segmenter.rows(prefill((0, [1, 2, 3])))
    segmenter.rows(decode((2, 5)))
    # request-0 is 3 long by now and began otherwise, so a cached prefix of 3 could be either's.
    assert "be a new request whose prefix was cached" in refused(segmenter.rows, prefill((3, [4, 5])))


def test_a_chunk_that_waited_goes_on_where_nothing_else_is_as_long() -> None:
    segmenter = Segmenter()
    segmenter.rows(prefill((0, [7, 8])))
    segmenter.rows(prefill((0, [1, 2, 3, 4])))
    segmenter.rows(decode((2, 5)))
    assert names(segmenter.rows(prefill((4, [4, 5])))) == ["request-1"] * 2
    assert names(segmenter.rows(decode((3, 5), (6, 6)))) == ["request-0", "request-1"]


def test_a_new_request_behind_a_cached_prefix_does_not_free_another_to_take_its_place() -> None:
    """The third pass may be request-0's next chunk. If it was a new request, request-0 still decodes at 2, and not request-1."""
    segmenter = Segmenter()
    segmenter.rows(prefill((0, [5, 5])))
    segmenter.rows(prefill((0, [6, 6]), (2, [7, 7])))
    assert "a row at position 2 could continue" in refused(segmenter.rows, decode((2, 1), (4, 1)))


@pytest.mark.parametrize("fields", [{}, {"slots": [1]}])
def test_a_stretch_that_may_be_a_chunk_or_a_cached_prefix_is_refused(fields: dict[str, list[int]]) -> None:
    """The slot does not help: it may have been freed, and taken by a new request with a cached prefix of that length."""
    segmenter = Segmenter()
    segmenter.rows(prefill((0, [1, 2, 3]), (0, [9, 9, 9, 9]), slots=[1, 2] if fields else [7, 8]))
    assert "be a new request whose prefix was cached" in refused(segmenter.rows, prefill((3, [4, 5]), **fields))


def test_a_slot_that_is_taken_anew_ends_the_request_before() -> None:
    segmenter = Segmenter()
    segmenter.rows(prefill((0, [1, 2, 3]), slots=[1]))
    segmenter.rows(prefill((0, [7, 8, 9]), slots=[1]))
    assert names(segmenter.rows(decode((3, 5), slots=[1]))) == ["request-1"]


def test_a_cached_prefix_gives_no_rows() -> None:
    segmenter = Segmenter()
    segmenter.rows(prefill((0, list(range(1, 13)))))
    rows = segmenter.rows(prefill((10, [11, 12])))
    assert names(rows) == ["request-1"] * 2
    assert rows.positions.tolist() == [10, 11]
    assert "cannot be told" in refused(segmenter.rows, decode((12, 5)))


def test_without_a_mode_a_single_row_that_goes_on_decodes() -> None:
    segmenter = Segmenter()
    assert kinds(segmenter.rows(batch([1, 2], [0, 1], seq_lens=[2]))) == [P, P]
    assert kinds(segmenter.rows(batch([3], [2], seq_lens=[3]))) == [D]
    assert kinds(segmenter.rows(batch([3], [0], seq_lens=[1]))) == [P]


def test_without_a_mode_a_single_row_may_be_a_new_request_behind_a_cached_prefix() -> None:
    segmenter = Segmenter()
    segmenter.rows(batch([1, 2, 3, 4], [0, 1, 0, 1], seq_lens=[2, 2]))
    segmenter.rows(batch([1, 1, 1, 5], [0, 1, 2, 3], seq_lens=[4]))
    assert "be a new request whose prefix was cached" in refused(segmenter.rows, batch([6], [2], seq_lens=[3]))


def test_an_idle_pass_is_padding() -> None:
    assert len(Segmenter().rows(batch([], [], "idle"))) == 0
    assert kinds(Segmenter().rows(batch([0, 0], [0, 0], "idle"))) == [PAD, PAD]


@pytest.mark.parametrize("value", ["1", 1, "ForwardMode.EXTEND", "extend", "EXTEND"])
def test_modes_are_known_by_number_and_name(value: object) -> None:
    assert forward_mode(value, "here") == "extend"
    assert forward_mode(None, "here") == ""


@pytest.mark.parametrize("value", ["5", "6", "ForwardMode.TARGET_VERIFY", "DRAFT_EXTEND_V2", "99", "x"])
def test_speculative_and_unknown_modes_are_refused(value: str) -> None:
    assert "speculation turned off" in refused(forward_mode, value, "here")

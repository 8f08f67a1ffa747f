"""The head's forward against a second implementation in scalar loops, and its cache against recomputation."""

from __future__ import annotations

import itertools

import pytest
import torch

from specalign.draft import DraftError, Eagle3Head, KVCache, build_eagle3, parse_eagle3_config

from .heads import TARGETS, config_dict, inputs, random_tensors
from .reference import NaiveHead

FLAGS = ("norm_before_fc", "fc_norm", "norm_output", "norm_before_residual")


def make(chunks: int = 3, width: int = 16, seed: int = 0, **changes: object) -> tuple[Eagle3Head, NaiveHead]:
    raw = config_dict(num_aux_hidden_states=chunks, target_hidden_size=width, **changes)
    tensors = random_tensors(
        raw, chunks=chunks, width=width, seed=seed, input_norm=bool(raw.get("norm_before_fc")), fc_norm=bool(raw.get("fc_norm")),
        bias=bool(raw.get("attention_bias")), mlp_bias=bool(raw.get("mlp_bias")),
    )  # fmt: skip
    return build_eagle3(parse_eagle3_config(raw), tensors), NaiveHead(raw, tensors)


def agrees(head: Eagle3Head, naive: NaiveHead, *, chunks: int = 3, width: int = 16, tokens: int = 7, first: int = 3) -> None:
    ids, states = inputs(tokens, chunks=chunks, width=width)
    hidden = head.combine_states(states)
    wanted = [naive.combine([s[t].numpy() for s in states]) for t in range(tokens)]
    torch.testing.assert_close(hidden, torch.tensor(wanted_array(wanted)), rtol=1e-11, atol=1e-11)
    positions = torch.arange(first, first + tokens)
    step = head(ids, hidden, positions)
    normed, stream, logits = (torch.tensor(wanted_array(x)) for x in naive.run(ids.tolist(), wanted, positions.tolist()))
    # The library computes frequencies in float32, as transformers does, so a float64 head is right to float32 precision in them.
    torch.testing.assert_close(step.normed, normed, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(step.recycled, normed if naive.raw.get("norm_output") else stream, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(head.logits(step.normed), logits, rtol=5e-6, atol=5e-6)


def wanted_array(rows):  # type: ignore[no-untyped-def]
    import numpy as np

    return np.stack(rows)


@pytest.mark.parametrize("on", list(itertools.product((False, True), repeat=4)), ids=lambda on: "".join("01"[x] for x in on))
def test_every_combination_of_norm_flags_equals_the_naive_head(on: tuple[bool, ...]) -> None:
    agrees(*make(**dict(zip(FLAGS, on, strict=True))))


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 3, "norm_before_residual": True},
        {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3},
        {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 2},
        {"attention_bias": True, "mlp_bias": True},
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 1},
        {"tie_word_embeddings": True, "draft_vocab_size": ...},
        {"draft_vocab_size": 40},
    ],
    ids=lambda c: "-".join(map(str, c)),
)
def test_other_layers_equal_the_naive_head(changes: dict[str, object]) -> None:
    agrees(*make(**changes))


@pytest.mark.parametrize(("chunks", "width"), [(1, 16), (1, 20), (4, 16), (4, 4), (2, 8)])
def test_any_number_of_chunks_of_any_width(chunks: int, width: int) -> None:
    agrees(*make(chunks, width, norm_before_fc=True, fc_norm=True), chunks=chunks, width=width)


@pytest.mark.parametrize(("chunks", "width"), [(1, 16), (4, 4)], ids=["one state as wide as the head", "four make its width"])
def test_equal_widths_do_not_skip_norms_and_fc(chunks: int, width: int) -> None:
    head, _ = make(chunks, width, norm_before_fc=True)
    _, states = inputs(5, chunks=chunks, width=width)
    joined = torch.cat(states, dim=-1)
    assert joined.shape[-1] == head.config.hidden_size
    assert not torch.allclose(head.combine_states(states), joined)
    torch.testing.assert_close(head.combine_states(joined), head.combine_states(states), rtol=0, atol=0)


def test_a_head_without_aux_states_takes_post_norm_as_it_is() -> None:
    raw = config_dict(eagle_config={"use_aux_hidden_state": False})
    tensors = random_tensors(raw, no_fc=True)
    head = build_eagle3(parse_eagle3_config(raw), tensors)
    ids, states = inputs(6, chunks=1)
    assert torch.equal(head.combine_states(states), states[0])
    step = head(ids, head.combine_states(states), torch.arange(6))
    normed, _, _ = NaiveHead(raw, tensors).run(ids.tolist(), list(states[0].numpy()), list(range(6)))
    torch.testing.assert_close(step.normed, torch.tensor(wanted_array(normed)), rtol=2e-6, atol=2e-6)
    with pytest.raises(DraftError, match="2 states for a head that takes 1"):
        head.combine_states([states[0], states[0]])


SLIDING = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}


@pytest.mark.parametrize("parts", [[1] * 9, [4, 1, 1, 3], [0, 5, 0, 4], [9]], ids=str)
@pytest.mark.parametrize("changes", [{}, SLIDING], ids=["full", "sliding"])
def test_decoding_in_parts_with_a_cache_equals_one_pass(parts: list[int], changes: dict[str, object]) -> None:
    head, _ = make(**changes)
    ids, states = inputs(9)
    hidden, positions, cache = head.combine_states(states), torch.arange(9) + 5, KVCache()
    whole = head(ids, hidden, positions).recycled
    pieces = [
        head(i, h, p, cache).recycled
        for i, h, p in zip(ids.split(parts), hidden.split(parts), positions.split(parts), strict=True)
    ]
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-12, atol=1e-12)
    assert len(cache) == 9


def test_a_cropped_cache_forgets_what_was_refused() -> None:
    head, _ = make(**SLIDING)
    ids, states = inputs(8)
    hidden, cache = head.combine_states(states), KVCache()
    head(ids[:4], hidden[:4], torch.arange(4), cache)
    head(ids[:3].flip(0), hidden[5:8], torch.arange(4, 7), cache)  # a wrong draft
    cache.crop(4)
    right = head(ids[4:], hidden[4:], torch.arange(4, 8), cache)
    torch.testing.assert_close(right.normed, head(ids, hidden, torch.arange(8)).normed[4:], rtol=1e-12, atol=1e-12)
    cache.crop(0)
    assert len(cache) == 0
    assert cache.positions is None


@pytest.mark.parametrize("length", [-1, 4])
def test_a_crop_beyond_the_cache_is_refused(length: int) -> None:
    head, _ = make()
    ids, states = inputs(3)
    cache = KVCache()
    head(ids, head.combine_states(states), torch.arange(3), cache)
    with pytest.raises(DraftError, match=rf"3 tokens cannot be cropped to {length}"):
        cache.crop(length)


def test_a_batch_is_its_rows() -> None:
    head, _ = make(num_hidden_layers=2)
    (ids_a, states_a), (ids_b, states_b) = inputs(5), inputs(5, seed=9)
    a, b = head.combine_states(states_a), head.combine_states(states_b)
    cache, ids, hidden = KVCache(), torch.stack([ids_a, ids_b]), torch.stack([a, b])
    head(ids[:, :2], hidden[:, :2], torch.arange(2), cache)
    step = head(ids[:, 2:], hidden[:, 2:], torch.tensor([[2, 3, 4], [2, 3, 4]]), cache)
    for row, (i, h) in enumerate([(ids_a, a), (ids_b, b)]):
        torch.testing.assert_close(step.normed[row], head(i, h, torch.arange(5)).normed[2:], rtol=1e-12, atol=1e-12)


def test_only_differences_of_positions_matter() -> None:
    head, _ = make()
    ids, states = inputs(5)
    hidden = head.combine_states(states)
    from_zero, from_one = (head(ids, hidden, torch.arange(5) + start).normed for start in (0, 1))
    torch.testing.assert_close(from_zero, from_one, rtol=1e-6, atol=1e-6)
    stretched = head(ids, hidden, torch.arange(5) * 3).normed
    assert not torch.allclose(from_zero, stretched, rtol=1e-3, atol=1e-3)


def test_a_window_changes_what_lies_beyond_it_and_nothing_else() -> None:
    changes = {"layer_types": ["sliding_attention"], "sliding_window": 3}
    (wide, _), (narrow, _) = make(), make(**changes)
    ids, states = inputs(8)
    hidden = wide.combine_states(states)
    a, b = wide(ids, hidden, torch.arange(8)).normed, narrow(ids, hidden, torch.arange(8)).normed
    torch.testing.assert_close(a[:3], b[:3], rtol=1e-12, atol=1e-12)
    assert (a[3:] - b[3:]).abs().amax(-1).min() > 1e-3


def test_an_idle_batch_gives_empty_states_of_the_right_width() -> None:
    head, _ = make()
    cache = KVCache()
    hidden = head.combine_states([torch.empty(0, 16, dtype=torch.float64)] * 3)
    step = head(torch.empty(0, dtype=torch.int64), hidden, torch.empty(0, dtype=torch.int64), cache)
    assert step.normed.shape == step.recycled.shape == (0, 16)
    assert head.logits(step.normed).shape == (0, 12)
    assert len(cache) == 0


def test_frequencies_stay_exact_when_the_head_is_cast_to_bf16() -> None:
    """A buffer of frequencies would be rounded to 8 bits by `.to(bfloat16)`: at position 4000 the angles would be noise."""
    head, _ = make()
    before = head.rotary(torch.tensor([4000]), torch.float32)
    after = head.to(torch.bfloat16).rotary(torch.tensor([4000]), torch.float32)
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_angles_are_computed_in_float32_and_rounded_once(dtype: torch.dtype) -> None:
    head, _ = make()
    exact = head.rotary(torch.arange(3995, 4005), torch.float32)
    got = head.rotary(torch.arange(3995, 4005), dtype)
    assert all(torch.equal(x.to(dtype), y) for x, y in zip(exact, got, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_other_dtypes_come_near_and_stay_in_their_dtype(dtype: torch.dtype) -> None:
    head, _ = make(num_hidden_layers=2, norm_before_fc=True)
    ids, states = inputs(6)
    exact = head(ids, head.combine_states(states), torch.arange(6)).normed
    head = head.to(dtype)
    step = head(ids, head.combine_states([s.to(dtype) for s in states]), torch.arange(6))
    assert step.normed.dtype == step.recycled.dtype == dtype
    torch.testing.assert_close(step.normed.double(), exact, rtol=0, atol=200 * torch.finfo(dtype).eps)


def test_states_that_skipped_combine_states_are_refused_even_when_wide_enough() -> None:
    head, _ = make()
    ids, states = inputs(4)
    with pytest.raises(DraftError, match=r"need a hidden state of shape \[4, 16\], not \[4, 48\].*combine_states"):
        head(ids, torch.cat(states, -1), torch.arange(4))


@pytest.mark.parametrize(
    ("states", "says"),
    [
        (lambda s: s[:2], r"2 states for a head that takes 3 of 16 features \(32 against 48\)"),
        (lambda s: [*s, s[0]], r"4 states for a head that takes 3"),
        (lambda s: torch.cat(s[:2], -1), r"32 features, this head takes 3 \* 16 = 48"),
        (lambda s: [s[0], s[1][:, :8], s[2]], r"state 1 has shape \(4, 8\)"),
        (lambda s: [s[0], s[1], s[2][:3]], r"state 2 has shape \(3, 16\)"),
    ],
)
def test_a_wrong_number_or_width_of_states_is_refused(states, says: str) -> None:  # type: ignore[no-untyped-def]
    head, _ = make()
    with pytest.raises(DraftError, match=says):
        head.combine_states(states(inputs(4)[1]))


@pytest.mark.parametrize(
    ("positions", "says"),
    [
        ([0, 1, 1, 2], "ascend strictly"),
        ([3, 2, 1, 0], "ascend strictly"),
        ([-1, 0, 1, 2], "must be >= 0"),
        ([0, 1, 2], r"positions torch.int64 \[3\] for tokens \[4\]"),
        ([0.0, 1.0, 2.0, 3.0], "give int positions"),
    ],
)
def test_wrong_positions_are_refused_and_leave_the_cache_alone(positions: list[float], says: str) -> None:
    head, _ = make()
    ids, states = inputs(4)
    cache = KVCache()
    with pytest.raises(DraftError, match=says):
        head(ids, head.combine_states(states), torch.tensor(positions), cache)
    assert len(cache) == 0


def test_positions_must_go_on_where_the_cache_ends() -> None:
    head, _ = make()
    ids, states = inputs(4)
    hidden, cache = head.combine_states(states), KVCache()
    head(ids, hidden, torch.arange(4), cache)
    with pytest.raises(DraftError, match=r"the cache ends at \[3\]; crop"):
        head(ids[:1], hidden[:1], torch.tensor([3]), cache)
    with pytest.raises(DraftError, match=r"the cache holds a batch of \[\], these tokens are \[1\]"):
        head(ids[None, :1], hidden[None, :1], torch.tensor([[4]]), cache)
    assert len(cache) == 4


def test_a_chain_of_drafts_recycles_and_maps_tokens() -> None:
    """Three draft steps as the module's docstring writes them equal a replay of the naive head from scratch."""
    head, naive = make(norm_output=True)
    ids, states = inputs(4)
    cache = KVCache()
    hidden = head.combine_states(states)
    step = head(ids, hidden, torch.arange(4), cache)
    tokens, recycled = ids.tolist(), [h.numpy() for h in hidden]
    for position in range(4, 7):
        normed, _, logits = naive.run(tokens, recycled, list(range(position)))
        wanted = TARGETS[int(logits[-1].argmax())]
        draft = head.vocab.to_target(head.logits(step.normed[-1:]).argmax(-1))
        assert draft.tolist() == [wanted]
        tokens, recycled = [*tokens, wanted], [*recycled, normed[-1]]
        step = head(draft, step.recycled[-1:], torch.tensor([position]), cache)

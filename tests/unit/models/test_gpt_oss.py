"""The model as a whole, against itself: chunks, rollback, batches, captured states. (Right values: the conformance tests.)"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from specalign.capture import CaptureError
from specalign.layer_ids import POST_NORM, State
from specalign.models import CacheError, GptOss, KVCache
from tests.unit.models.tiny import BASE, CONFIGS, tiny, tokens

every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def feed(model: GptOss, ids: Tensor, sizes: list[int], cache: KVCache) -> Tensor:
    """The logits of `ids`, passed in as chunks of these sizes."""
    return torch.cat([model(chunk, cache=cache).logits for chunk in ids.split(sizes, dim=1)], dim=1)


def furthest(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())


@every_config
@pytest.mark.parametrize("sizes", [[23], [1] * 23, [7, 1, 0, 9, 6], [4, 5, 5, 5, 4]], ids=["one", "23", "uneven", "five"])
@pytest.mark.parametrize("rollback", [None, 0])
def test_prefill_in_chunks_equals_one_prefill(config: dict[str, Any], sizes: list[int], rollback: int | None) -> None:
    model = tiny(config)
    whole = model(tokens(23, batch=2)).logits
    cache = model.new_cache(rollback=rollback)
    assert furthest(feed(model, tokens(23, batch=2), sizes, cache), whole) <= 1e-5
    assert cache.length == 23


@every_config
def test_rollback_equals_never_having_seen_the_tokens(config: dict[str, Any]) -> None:
    """Draft tokens verified and all refused, then others in their place: the same bits as without the refused ones."""
    model, ids, refused = tiny(config), tokens(30), tokens(4, seed=9)
    cache, fresh = model.new_cache(rollback=4), model.new_cache()
    for start in range(0, 30, 5):
        model(refused, cache=cache)
        cache.crop(start)
        chunk = ids[:, start : start + 5]
        assert torch.equal(model(chunk, cache=cache).logits, model(chunk, cache=fresh).logits), start


@every_config
@pytest.mark.parametrize("kept", [1, 2, 3])
def test_partly_accepted_drafts_equal_recomputation(config: dict[str, Any], kept: int) -> None:
    model, ids = tiny(config), tokens(40)
    cache, position = model.new_cache(rollback=4), 0
    while position + 4 <= 40:
        draft = ids[:, position : position + 4].clone()
        draft[:, kept:] = (draft[:, kept:] + 1) % 97
        got = model(draft, cache=cache, capture=(0, 2, POST_NORM))
        position += kept
        cache.crop(position)
        want = model(ids[:, :position], capture=(0, 2, POST_NORM))
        assert furthest(got.logits[:, :kept], want.logits[:, -kept:]) <= 1e-5
        for mine, whole in zip(got.states, want.states, strict=True):
            assert furthest(mine[:, :kept], whole[:, -kept:]) <= 1e-5


def test_forgetting_to_roll_back_is_seen() -> None:
    """The control for the tests above."""
    model, ids, cache = tiny(), tokens(10), tiny().new_cache()
    model(ids, cache=cache)
    assert furthest(model(ids[:, :1], cache=cache).logits, model(ids[:, :1]).logits) > 1e-2


def test_sequences_of_a_batch_do_not_touch_each_other() -> None:
    model, ids = tiny(), tokens(12, batch=3)
    together = model(ids).logits
    for row in range(3):
        assert furthest(together[row : row + 1], model(ids[row : row + 1]).logits) <= 1e-5


def test_no_token_sees_a_later_one() -> None:
    model, ids = tiny(), tokens(12)
    changed = ids.clone()
    changed[:, 8:] = (changed[:, 8:] + 1) % 97
    assert furthest(model(ids).logits[:, :8], model(changed).logits[:, :8]) <= 1e-5
    assert furthest(model(ids).logits[:, 8:], model(changed).logits[:, 8:]) > 1e-2


def boundaries(model: GptOss, ids: Tensor) -> list[Tensor]:
    """Every boundary, by the loop of the class docstring."""
    step, hidden = model.prepare(ids), model.embed(ids)
    found = [hidden.clone()]
    for block in model.blocks:
        hidden = block(hidden, step)
        found.append(hidden.clone())
    return found


@pytest.mark.parametrize("states", [(0,), (4,), (4, 0, 2), (1, POST_NORM, 3), (POST_NORM,), (0, 1, 2, 3, 4, POST_NORM)])
def test_states_come_in_the_order_asked_for(states: tuple[State, ...]) -> None:
    model, ids = tiny(), tokens(9, batch=2)
    by_hand = boundaries(model, ids)
    out = model(ids, capture=states)
    assert len(out.states) == len(states)
    for state, got in zip(states, out.states, strict=True):
        assert torch.equal(got, model.final_norm(by_hand[4]) if state is POST_NORM else by_hand[state])
    assert torch.equal(out.logits, model(ids).logits)


def test_boundary_n_is_not_normed_and_no_post_norm_comes_unasked() -> None:
    model, ids = tiny(), tokens(9)
    last, normed = model(ids, capture=(4, POST_NORM)).states
    assert furthest(last, normed) > 1e-2
    assert torch.equal(model.final_norm(last), normed)
    assert model(ids).states == ()
    assert torch.equal(model.head(normed), model(ids).logits)


def test_captured_states_are_copies() -> None:
    model, ids = tiny(), tokens(9)
    first = model(ids, capture=(0, 4, POST_NORM)).states
    kept = [state.clone() for state in first]
    for state in model(ids, capture=(0, 4, POST_NORM)).states:
        state.zero_()
    assert all(torch.equal(a, b) for a, b in zip(first, kept, strict=True))
    assert len({state.untyped_storage().data_ptr() for state in first}) == 3


@pytest.mark.parametrize("states", [(5,), (-1,), (0, 0), (POST_NORM, POST_NORM), (2, 5, 3), (True,)])
def test_states_that_are_not_there_are_refused(states: tuple[State, ...]) -> None:
    with pytest.raises(CaptureError):
        tiny()(tokens(3), capture=states)


@pytest.mark.parametrize("shape", [(0, 5), (1, 0), (0, 0)])
def test_an_idle_batch_gives_empty_states_of_the_right_width(shape: tuple[int, int]) -> None:
    out = tiny()(torch.zeros(shape, dtype=torch.int64), capture=(0, 4, POST_NORM))
    assert [tuple(state.shape) for state in out.states] == [(*shape, 64)] * 3
    assert out.logits.shape == (*shape, 97)


def test_positions_turn_the_rope_only_by_their_differences() -> None:
    model, ids = tiny(BASE | {"layer_types": ["full_attention"] * 4}), tokens(9)
    moved = model(ids, positions=torch.arange(100, 109)).logits
    assert furthest(moved, model(ids).logits) <= 1e-3
    assert torch.equal(model(ids, positions=torch.arange(9)).logits, model(ids).logits)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([0, 1], r"must be \[3\]"),
        ([0, 2, 3], "ascend by one"),
        ([2, 1, 0], "ascend by one"),
        ([5, 6, 7], "first position is 5, but the cache holds 4 rows"),
    ],
)
def test_positions_that_do_not_continue_the_cache_are_refused(positions: list[int], message: str) -> None:
    model = tiny()
    cache = model.new_cache()
    model(tokens(4), cache=cache)
    with pytest.raises(CacheError, match=message):
        model(tokens(3), positions=torch.tensor(positions), cache=cache)
    assert cache.length == 4


def test_one_flat_sequence_is_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"tokens\[None\]"):
        tiny()(tokens(4)[0])


def test_gradients_reach_every_parameter_of_a_model_that_is_to_be_trained() -> None:
    model = tiny().requires_grad_(True)
    model(tokens(60, batch=2)).logits.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.any()), name

"""The KV cache: it hands out the rows a query may see, takes rows back, and refuses what it cannot do."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specalign.models import CacheError, KVCache


def rows(first: int, count: int, *, batch: int = 1, tag: float = 0.0) -> Tensor:
    """`[batch, count, 2, 4]`: row p holds p + tag."""
    return (torch.arange(first, first + count, dtype=torch.float32) + tag).view(1, -1, 1, 1).expand(batch, -1, 2, 4)


def held(tensor: Tensor) -> list[float]:
    return tensor[0, :, 0, 0].tolist()


@settings(deadline=None)
@given(
    window=st.one_of(st.none(), st.integers(1, 6)),
    rollback=st.integers(0, 4),
    steps=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=20),
)
def test_what_comes_back_is_what_a_plain_list_would_give(window: int | None, rollback: int, steps: list[tuple[int, int]]) -> None:
    """Appending `count` rows, then taking `back` rows back, of this pass and earlier ones, as far as was promised: against a
    list. Keys and values are told apart by half a unit."""
    cache, rest, written, longest = KVCache([window], rollback=rollback), list[float](), 0.0, 0
    for count, back in steps:
        new = [written + i for i in range(count)]
        written += count
        past = len(rest)
        keys = torch.tensor(new).view(1, -1, 1, 1).expand(1, -1, 2, 4)
        got_keys, got_values = cache.append(0, keys, keys + 0.5)
        rest += new
        first = 0 if window is None else max(0, past - window + 1)
        assert held(got_keys) == rest[first:]
        assert held(got_values) == [row + 0.5 for row in rest[first:]]
        longest = max(longest, len(rest))
        back = max(0, min(back, len(rest) - max(0, longest - rollback)))
        rest = rest[: len(rest) - back]
        cache.crop(len(rest))
        assert cache.length == len(rest)


def room(cache: KVCache) -> int:
    """Rows that the first layer has memory for."""
    keys = cache._layers[0].keys
    assert keys is not None
    return keys.shape[1]


def test_rows_behind_the_window_are_let_go_only_with_a_promise() -> None:
    """With rollback=2 the memory of a sliding layer stays constant; without, every row stays."""
    bounded, whole = KVCache([4], rollback=2), KVCache([4])
    for position in range(500):
        bounded.append(0, rows(position, 1), rows(position, 1))
        whole.append(0, rows(position, 1), rows(position, 1))
    assert room(bounded) <= 2 * (4 + 2)
    assert room(whole) >= 500
    whole.crop(3)
    bounded.crop(498)
    with pytest.raises(CacheError, match=r"cannot crop to 400 rows: layer 0 needs the rows from 397 on .* rollback=2, wanted 98"):
        bounded.crop(400)
    assert bounded.length == 498


def test_a_promise_reaches_over_several_passes() -> None:
    """One row a pass, four of them taken back, at every length: the rows of the window before them are all still there."""
    for length in range(8, 60):
        cache = KVCache([3], rollback=4)
        for position in range(length):
            cache.append(0, rows(position, 1), rows(position, 1))
        cache.crop(length - 4)
        keys, _ = cache.append(0, rows(0, 1, tag=0.5), rows(0, 1))
        assert held(keys) == [length - 6, length - 5, 0.5]


def test_a_refused_crop_changes_nothing_in_any_layer() -> None:
    cache = KVCache([None, 2], rollback=0)
    for position in range(9):
        for layer in range(2):
            cache.append(layer, rows(position, 1), rows(position, 1))
    with pytest.raises(CacheError, match="layer 1"):
        cache.crop(1)
    assert cache.length == 9
    with pytest.raises(CacheError, match="the cache holds 9"):
        cache.crop(10)
    with pytest.raises(CacheError, match="cannot crop to -1"):
        cache.crop(-1)


def test_a_pass_broken_off_is_noticed_and_can_be_mended() -> None:
    cache = KVCache([None, None])
    for layer in range(2):
        cache.append(layer, rows(0, 3), rows(0, 3))
    cache.append(0, rows(3, 1), rows(3, 1))
    with pytest.raises(CacheError, match=r"from 3 to 4 rows: a pass was broken off; crop\(3\)"):
        _ = cache.length
    cache.crop(3)
    assert cache.length == 3


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (rows(1, 1, batch=2), "batch 1, these are of 2"),
        (rows(1, 1).double(), "dtype torch.float32, these are of torch.float64"),
        (torch.zeros(1, 1, 3, 4), r"\[heads, head_dim\] \[2, 4\], these are of \[3, 4\]"),
        (torch.zeros(1, 2, 4), "must both be"),
    ],
)
def test_rows_of_another_kind_are_refused(new: Tensor, message: str) -> None:
    cache = KVCache([None])
    cache.append(0, rows(0, 1), rows(0, 1))
    with pytest.raises(CacheError, match=message):
        cache.append(0, new, new)


def test_gradients_are_refused() -> None:
    with pytest.raises(CacheError, match="no_grad"):
        KVCache([None]).append(0, rows(0, 1).clone().requires_grad_(), rows(0, 1))


@pytest.mark.parametrize(("windows", "rollback"), [([], None), ([0], None), ([3], -1)])
def test_impossible_caches_are_refused(windows: list[int | None], rollback: int | None) -> None:
    with pytest.raises(CacheError):
        KVCache(windows, rollback=rollback)


def test_batch_is_known_after_the_first_pass() -> None:
    cache = KVCache([None])
    assert cache.batch is None
    assert cache.length == 0
    cache.append(0, rows(0, 2, batch=3), rows(0, 2, batch=3))
    assert cache.batch == 3

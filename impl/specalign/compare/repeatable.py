"""Does a function give the same bits again: from call to call, in batches of another size, with its rows in another order?

Three checks that raise `BitsDifferError` with the first element that differs. Each compares raw bits (element type, shape, every
bit: −0 is not +0) of a tensor or of dicts, lists and tuples of tensors, torch or numpy.

What none of them can see: a function that ignores its input, or returns what it stored the first time, gives the same bits each
time. Compare such a function with a reference as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from specalign.compare.leaves import Leaf, NotComparableError, differences, read_leaves

__all__ = [
    "BitsDifferError",
    "NotComparableError",
    "assert_batch_invariant",
    "assert_order_invariant",
    "assert_repeatable",
]

_SHOWN: Final = 8


class BitsDifferError(AssertionError):
    """Two results that must have the same bits have not. The message names the first element of each tensor that differs."""


def assert_repeatable(fn: Callable[[], Any], *, runs: int = 3, allow_nan: bool = False) -> None:
    """Call `fn()` several times; every result must have the bits of the first one.

    Random numbers are not reset between the calls: seed inside `fn` if it draws any.

    Args:
        fn: takes nothing; returns a tensor or a tree of them.
        runs: how often, at least 2.
        allow_nan: let results hold NaN, which must then have the same bits too.

    Raises:
        BitsDifferError: a result differs from the first.
        NotComparableError: fewer than 2 runs, or a result with nothing in it to compare (see `read_leaves`).
    """
    if not _is_int(runs) or runs < 2:
        raise NotComparableError(f"assert_repeatable: runs is {runs!r}: give a whole number of at least 2")
    first = read_leaves("result", fn(), allow_nan=allow_nan)
    for run in range(2, runs + 1):
        again = read_leaves("result", fn(), allow_nan=allow_nan)
        found = differences("result", first, again, "in call 1", f"in call {run}")
        _fail_on(
            found,
            f"assert_repeatable: call {run} of {runs} gives other bits than call 1",
            "look for state that a call leaves behind, unseeded random numbers and atomics (torch.use_deterministic_algorithms)",
        )


def assert_batch_invariant(
    fn: Callable[[Any], Any], rows: Any, *, sizes: Iterable[int] | None = None, allow_nan: bool = False
) -> None:
    """A row's result must not depend on how many rows are computed together.

    `fn` is called on all rows, then for each size on consecutive batches of that size (the last may be smaller). Row i of a
    result must have the bits of that row in the result of the whole. `fn` always gets a copy of its own.

    Args:
        fn: takes rows, returns a tensor or a tree of them, each with one row for each row of its input.
        rows: `[rows, …]`, a tensor or a tree of them with the same number of rows.
        sizes: sizes of batches, 1 to the number of rows, at least one below it. By default 1, 2, 3, 5, the powers of two
            and one less than the whole, where they are smaller than the whole.
        allow_nan: let results hold NaN, which must then have the same bits too.

    Raises:
        BitsDifferError: a row differs.
        NotComparableError: fewer than 2 rows, no size below the number of rows, a size out of range, a result with nothing to
            compare in it or without one row for each row of the input.
    """
    count = _row_count("assert_batch_invariant", rows)
    chosen = _sizes(count, sizes)
    whole = _results(fn, _take(rows, slice(None)), count, allow_nan)
    for size in chosen:
        for begin in range(0, count, size):
            end = min(begin + size, count)
            alone = _results(fn, _take(rows, slice(begin, end)), end - begin, allow_nan)
            part = [leaf.rows(begin, end) for leaf in whole]
            batch = f"rows {begin}:{end} as a batch of {end - begin}"
            found = differences("result", part, alone, f"among all {count}", f"in the batch of {end - begin}")
            _fail_on(
                found,
                f"assert_batch_invariant: {batch} have other bits than in the whole batch of {count} (size {size} of {chosen});"
                f" elements count from row {begin}",
                "look for a split, tile or kernel that is chosen by the number of rows (split-K, cuBLAS heuristics, padding)",
            )


def assert_order_invariant(
    fn: Callable[[Any], Any],
    rows: Any,
    *,
    permutations: int | Iterable[Sequence[int]] = 4,
    seed: int = 0,
    allow_nan: bool = False,
) -> None:
    """A row's result must not depend on where it stands in the batch, nor on the order of the others.

    `fn` is called on all rows, then on the same rows in other orders. Row i of such a result must have the bits of row
    `permutation[i]` of the first. `fn` always gets a copy of its own.

    Args:
        fn, rows, allow_nan: as for `assert_batch_invariant`.
        permutations: how many orders to try, or the orders themselves. A number means the reversed order, then random ones.
        seed: of the random orders.

    Raises:
        BitsDifferError: a row differs.
        NotComparableError: fewer than 2 rows, no order to try, an order that is no permutation or changes nothing (its rows have
            the same bits), a result with nothing to compare in it or without one row for each row of the input.
    """
    count = _row_count("assert_order_invariant", rows)
    orders = _orders(count, permutations, seed)
    for number, order in enumerate(orders):
        _refuse_idle(rows, order, number)
    first = _results(fn, _take(rows, slice(None)), count, allow_nan)
    for order in orders:
        moved = _results(fn, _take(rows, order), count, allow_nan)
        expected = [leaf.taken(order) for leaf in first]
        found = differences("result", expected, moved, "in the first order", "after the permutation")
        shown = f"{order[:16]}{' …' if count > 16 else ''}"
        _fail_on(
            found,
            f"assert_order_invariant: rows in the order {shown} have other bits than before (elements count in that order)",
            "look for sums over rows, tiles that mix rows, ties broken by position, and results in another order than the input",
        )


def _fail_on(found: list[str], headline: str, advice: str) -> None:
    if not found:
        return
    more = [f"  … and {len(found) - _SHOWN} tensors more"] if len(found) > _SHOWN else []
    lines = [headline, *("  " + text for text in found[:_SHOWN]), *more, f"  next: {advice}"]
    raise BitsDifferError("\n".join(lines))


def _results(fn: Callable[[Any], Any], rows: Any, count: int, allow_nan: bool) -> list[Leaf]:
    leaves = read_leaves("result", fn(rows), allow_nan=allow_nan)
    for leaf in leaves:
        if leaf.shape[:1] != (count,):
            raise NotComparableError(
                f"result{leaf.path} is {leaf.kind}: a function of {count} rows must return {count} rows, so that each can be"
                " compared; leave out what belongs to no row"
            )
    return leaves


def _row_count(who: str, rows: Any) -> int:
    shape = getattr(rows, "shape", None)
    if shape is not None and len(shape) > 0 and int(shape[0]) == 0:
        raise NotComparableError(f"{who}: rows of shape {list(shape)} hold no row; give at least 2")
    leaves = read_leaves("rows", rows, allow_nan=True)
    counts = {leaf.shape[0] if leaf.shape else None for leaf in leaves}
    count = counts.pop()
    if counts or count is None:
        listed = ", ".join(f"rows{leaf.path} {leaf.kind}" for leaf in leaves[:_SHOWN])
        raise NotComparableError(f"{who}: every tensor of the rows needs the same number of rows first; here: {listed}")
    if count < 2:
        raise NotComparableError(f"{who}: one row alone has no other batch and no other order; give at least 2")
    return count


def _sizes(count: int, sizes: Iterable[int] | None) -> list[int]:
    if sizes is None:
        powers = {2**power for power in range(count.bit_length())}
        return sorted(size for size in powers | {3, 5, count - 1} if size < count)
    chosen = list(sizes)
    for size in chosen:
        if not _is_int(size) or not 1 <= size <= count:
            raise NotComparableError(
                f"assert_batch_invariant: size {size!r}: give whole numbers from 1 to {count}, the number of rows"
            )
    if all(size == count for size in chosen):
        raise NotComparableError(
            f"assert_batch_invariant: sizes are {chosen} and there are {count} rows: the whole batch would be compared with"
            " itself; give a smaller size"
        )
    return chosen


def _orders(count: int, permutations: int | Iterable[Sequence[int]], seed: int) -> list[list[int]]:
    if isinstance(permutations, int):
        if isinstance(permutations, bool) or permutations < 1:
            raise NotComparableError(f"assert_order_invariant: permutations is {permutations!r}: give at least 1")
        return _random_orders(count, permutations, seed)
    orders = [[int(index) for index in order] for order in permutations]
    for order in orders:
        if sorted(order) != list(range(count)):
            raise NotComparableError(f"assert_order_invariant: {order[:16]} is no permutation of the rows 0 to {count - 1}")
    if not orders:
        raise NotComparableError("assert_order_invariant: no permutation was given, so nothing can be compared")
    return orders


def _random_orders(count: int, wanted: int, seed: int) -> list[list[int]]:
    """The reversed order, then random ones; none twice, none that leaves every row in place. Few rows have few orders."""
    rng = random.Random(seed)  # noqa: S311  # orders to try, no secret
    identity = list(range(count))
    orders = [identity[::-1]]
    for _ in range(10 * wanted):
        order = rng.sample(identity, count)
        if len(orders) < wanted and order != identity and order not in orders:
            orders.append(order)
    return orders


def _refuse_idle(rows: Any, order: list[int], number: int) -> None:
    before = read_leaves("rows", rows, allow_nan=True)
    if not any((leaf.bits != leaf.taken(order).bits).any() for leaf in before):
        raise NotComparableError(
            f"assert_order_invariant: permutation {number} leaves the rows as they are, bit for bit: nothing would be compared;"
            " give rows that differ and orders that move them"
        )


def _take(rows: Any, which: slice | list[int]) -> Any:
    """Some rows of a tensor or of each tensor in a tree, as a copy."""
    if isinstance(rows, Mapping):
        return {key: _take(item, which) for key, item in rows.items()}
    if isinstance(rows, tuple) and hasattr(rows, "_fields"):
        return type(rows)(*(_take(item, which) for item in rows))
    if isinstance(rows, (list, tuple)):
        return type(rows)(_take(item, which) for item in rows)
    taken = rows[which]
    return taken.clone() if hasattr(taken, "clone") else taken.copy()


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)

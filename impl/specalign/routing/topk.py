"""Top-k of short rows with the ties decided: which experts a token takes, and in which order they stand in its slots.

The rule. Scores are compared as numbers, so −0 equals +0. Of two equal scores the lower expert index wins. A NaN is no score.
Both parts go into one int64 key, score above, inverted index below; no two keys of a row are equal, so every correct top-k of the
keys gives the same ids, on a CPU and on a GPU.

Two orders of the slots:

- `sorted`: by score, highest first, equal scores by index.
- `engine`: what `torch.topk(sorted=False)` leaves in its slots on a CUDA device. Call the k-th highest score the threshold. First
  come the experts above it, by ascending index whatever their scores; then experts at the threshold, by ascending index, until k
  are full.

Where the engine order comes from (PyTorch, `TensorTopK.cu` and `SortingRadixSelect.cuh` in `ATen/native/cuda`): a radix select
finds the threshold, then the row is gathered in index order, what is above it and what equals it counted apart. Which kernel does
so depends on the shape: one block a row if the row is shorter than a limit that falls with the number of rows
(`SINGLE_BLOCK_LIMITS`); from there on several blocks a row, which begin at prefix sums in block order, so the order is the same.
Rows of fewer than 400 experts take the single block at any number of tokens. What differs, or is no rule at all:

- The kernels compare bit patterns in which −0 lies below +0. A row in which both zeros meet at the threshold follows
  `zeros="signed"`; sigmoid and softmax scores have no −0.
- `sorted=True` sorts the k slots afterwards, for k ≤ 32 by a bitonic network that does not keep the order of equal scores: the
  set is the same, the slots of ties are whatever the network leaves.
- A CPU partitions instead; ROCm has a kernel of its own for rows of up to 256; CUDA builds before 11.6 sort rows of 100,000 and
  more when there are at most ten.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from specalign.routing.errors import RoutingError

Order: TypeAlias = Literal["sorted", "engine"]
Zeros: TypeAlias = Literal["equal", "signed"]
CheckNan: TypeAlias = Literal["sync", "off"]

SINGLE_BLOCK_LIMITS = ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800), (None, 400))
"""(rows up to, row length below): where CUDA's topk gives a row to one block. PyTorch with CUDA 11.6 or newer."""

_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16, torch.float16: torch.int16}
SCORE_DTYPES = tuple(_BITS)
_INDEX_BITS = 32


class TopK(NamedTuple):
    """`ids` int64 `[T, k]` and `values` `[T, k]` in the scores' dtype, slot by slot; gradients flow through `values`."""

    ids: Tensor
    values: Tensor


def ordered_topk(
    scores: Tensor,
    k: int,
    *,
    order: Order = "sorted",
    zeros: Zeros = "equal",
    check_nan: CheckNan = "sync",
) -> TopK:
    """The k highest scores of each row, ties to the lowest index. The rule and the two orders: see the module.

    Args:
        scores: `[T, E]`, fp32, bf16 or fp16, any strides, any device; ±inf are scores like others.
        k: 0 ≤ k ≤ E.
        order: `sorted` or `engine`.
        zeros: `equal`: −0 ties with +0. `signed`: −0 lies below +0, as in CUDA's own kernels.
        check_nan: `sync` looks for NaN, which waits for the device; `off` does not, and then a NaN counts as above +inf, or below
            −inf if its sign bit is set. Nothing else here waits for the device.

    Raises:
        RoutingError: a NaN, with the first (token, expert); a shape, dtype, k or option that is none of the above.
    """
    _check_arguments(scores, k, order=(order, Order), zeros=(zeros, Zeros), check_nan=(check_nan, CheckNan))
    if check_nan == "sync":
        refuse_nan(scores)
    keys = score_keys(scores, zeros=zeros)
    ids = _sorted_ids(keys, k)
    if order == "engine" and k > 0:
        ids = _in_engine_order(keys, ids)
    return TopK(ids, scores.gather(1, ids))


def tied(scores: Tensor, k: int, *, zeros: Zeros = "equal") -> Tensor:
    """Rows whose set of experts depends on the tie rule: the k-th and the next score are equal. bool `[T]`; arguments as above.

    Another correct top-k may choose other experts for these rows. NaN is not looked for.
    """
    _check_arguments(scores, k, zeros=(zeros, Zeros))
    if not 0 < k < scores.shape[1]:
        return torch.zeros(scores.shape[0], dtype=torch.bool, device=scores.device)
    keys = score_keys(scores, zeros=zeros)
    edge = keys.gather(1, _sorted_ids(keys, k + 1)[:, k - 1 :])
    return edge[:, 0] == edge[:, 1]


def score_keys(scores: Tensor, *, zeros: Zeros = "equal") -> Tensor:
    """int64 keys in the order of the scores, exactly: sign and magnitude of the bits as one two's complement number.

    Both zeros become 0; with `zeros="signed"` every negative key is one lower, so −0 becomes −1.
    """
    bits = scores.detach().view(_BITS[scores.dtype])
    magnitude = (bits & torch.iinfo(bits.dtype).max).to(torch.int64)
    return torch.where(bits < 0, -magnitude - int(zeros == "signed"), magnitude)


def refuse_nan(scores: Tensor, name: str = "scores", *, infinite: bool = False) -> None:
    """Raise `RoutingError` for the first NaN of `[T, E]`, row-major; with `infinite`, for ±inf too. Waits for the device."""
    wrong = ~scores.isfinite() if infinite else scores.isnan()
    if not wrong.any():
        return
    token, expert = wrong.nonzero()[0].tolist()
    raise RoutingError(
        f"{name}[{token}, {expert}] is {scores[token, expert].item()} (token {token}, expert {expert}; {int(wrong.sum())} in all)"
        " and has no place in the order of experts. Look at the router's input, weight and bias"
    )


def _sorted_ids(keys: Tensor, k: int) -> Tensor:
    """Ids of the k highest, highest first. The keys are unique, so that no implementation has a choice."""
    index = torch.arange(keys.shape[1], device=keys.device)
    unique = (keys << _INDEX_BITS) | ((1 << _INDEX_BITS) - 1 - index)
    return unique.topk(k, dim=1).indices


def _in_engine_order(keys: Tensor, ids: Tensor) -> Tensor:
    """The same ids: those above the threshold by index, then those at it by index."""
    chosen = keys.gather(1, ids)
    experts = keys.shape[1]
    places = ids + experts * (chosen == chosen[:, -1:])
    return places.sort(dim=1).values % experts


def _check_arguments(scores: Tensor, k: int, **options: tuple[str, object]) -> None:
    if scores.ndim != 2 or scores.dtype not in _BITS:
        found = f"{str(scores.dtype).removeprefix('torch.')} {list(scores.shape)}"
        raise RoutingError(f"scores are {found}: expected [tokens, experts] in fp32, bf16 or fp16")
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= scores.shape[1]:
        raise RoutingError(f"k = {k!r} of {scores.shape[1]} experts: expected a whole number from 0 to {scores.shape[1]}")
    for name, (value, allowed) in options.items():
        if value not in get_args(allowed):
            raise RoutingError(f"{name} = {value!r}: expected one of {list(get_args(allowed))}")

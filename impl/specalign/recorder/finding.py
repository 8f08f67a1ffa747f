"""Finding out which row is what, from the arguments of a model's forward: no engine is imported, and nothing leaves the GPU.

ForwardBatch            SGLang: request ids, forward mode and lengths stand there
cu_seqlens              packed sequences, as keywords or in Megatron's packed_seq_params
input_ids [batch, seq]  transformers: attention_mask tells padding, the cache how much came before
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from specalign.dump.keys import RowKind
from specalign.recorder.batch import RowBatch, padding_kinds
from specalign.recorder.errors import RecordError
from specalign.recorder.names import RequestNames
from specalign.recorder.sglang_rows import find_forward_batch, forward_batch_rows

Rows: TypeAlias = Callable[[tuple[Any, ...], Mapping[str, Any]], RowBatch]
"""`(args, kwargs) -> RowBatch`: what the caller may pass as rows=."""

TOKEN_NAMES = ("input_ids", "tokens")
CACHE_NAMES = ("past_key_values", "past_key_value", "cache")
CU_SEQLENS_NAMES = ("cu_seqlens", "cu_seqlens_q", "cu_seq_lens_q")

_SAY_ROWS = "Pass rows=lambda args, kwargs: RowBatch(tokens, positions, requests, kinds, request_ids)"


def find_rows(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], names: RequestNames) -> RowBatch | None:
    """The rows of one forward; None if it stands for no request (SGLang's warm-up).

    Raises:
        RecordError: it cannot be known which row is what; names what to pass.
    """
    batch = find_forward_batch(args, kwargs)
    if batch is not None:
        return forward_batch_rows(batch)
    named = named_arguments(model, args, kwargs)
    tokens = next((named[name] for name in TOKEN_NAMES if isinstance(named.get(name), Tensor)), None)
    if tokens is None:
        raise RecordError(
            f"the forward of {type(model).__name__} got no {' or '.join(TOKEN_NAMES)}, so that no row can be told from another"
            f" (inputs_embeds and inner pipeline stages have none). {_SAY_ROWS}"
        )
    packed = packed_lengths(named)
    if packed is not None:
        return packed_rows(tokens, *packed, names)
    return padded_rows(tokens, named, names)


def named_arguments(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name; a wrapper that hands `*args` on (DDP, Float16Module) has the names of what it wraps."""
    while True:
        parameters = list(inspect.signature(model.forward).parameters.values())
        inner = getattr(model, "module", None)
        if not isinstance(inner, nn.Module) or not any(item.kind is item.VAR_POSITIONAL for item in parameters):
            break
        model = inner
    places = [item.name for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    return {**dict(zip(places, args, strict=False)), **kwargs}


def padded_rows(tokens: Tensor, named: Mapping[str, Any], names: RequestNames) -> RowBatch:
    """Sequences of equal length `[batch, seq]` with padding on either side.

    Positions count real tokens: by the mask where there is one, else `position_ids`, else from where the cache ends.
    """
    if tokens.ndim != 2:
        raise RecordError(f"input_ids is {list(tokens.shape)}, and no cu_seqlens says where sequences begin. {_SAY_ROWS}")
    count, length = tokens.shape
    cache = next((named[name] for name in CACHE_NAMES if named.get(name) is not None), None)
    past = _past_length(cache)
    real, positions = _real_positions(tokens, named, past)
    ids = names.next(count, cache, past)
    requests = torch.arange(count, device=tokens.device, dtype=torch.int32)[:, None].expand(count, length)
    kind = RowKind.DECODE if past and length == 1 else RowKind.PREFILL
    return RowBatch(tokens, positions, requests.masked_fill(~real, -1), padding_kinds(real, kind), ids)


def packed_rows(
    tokens: Tensor, edges: Tensor, padded: Tensor | None, names: RequestNames, *, cp: tuple[int, int] = (0, 1)
) -> RowBatch:
    """Sequences packed one after another.

    Args:
        edges: their cumulated lengths, from 0.
        padded: where each begins, if they are padded.
        cp: (rank, size) of context parallelism, where each rank holds chunks r and 2 * size - 1 - r of every sequence, as
            Megatron cuts them; `edges` and `padded` are then those of the whole sequences.
    """
    tokens = tokens.reshape(-1)
    edges = edges.to(tokens.device).long().reshape(-1)
    starts = edges if padded is None else padded.to(tokens.device).long().reshape(-1)
    if starts.shape != edges.shape or len(edges) < 1:
        raise RecordError(
            f"cu_seqlens has {len(edges)} entries and cu_seqlens_padded {len(starts)}: they name the same sequences"
        )
    count = len(edges) - 1
    index = torch.arange(len(tokens), device=tokens.device)
    owner = torch.searchsorted(starts[1:].contiguous() // cp[1], index, right=True)
    inside = owner.clamp(max=max(count - 1, 0))
    positions = index - starts[inside] // cp[1]
    if cp[1] > 1:
        positions = _zigzag(positions, starts.diff()[inside] // (2 * cp[1]), *cp)
    lengths = edges.diff() if count else edges.new_zeros(1)
    real = (owner < count) & (positions < lengths[inside])
    requests = inside.to(torch.int32).masked_fill(~real, -1)
    return RowBatch(tokens, positions, requests, padding_kinds(real, RowKind.PREFILL), names.next(count, None, 0))


def _zigzag(place: Tensor, chunk: Tensor, rank: int, size: int) -> Tensor:
    """The position in the whole sequence of place 0, 1, … on one rank, for chunks of `chunk` tokens."""
    return torch.where(place < chunk, rank * chunk + place, (2 * size - 2 - rank) * chunk + place)


def packed_lengths(named: Mapping[str, Any]) -> tuple[Tensor, Tensor | None] | None:
    packed = named.get("packed_seq_params")
    if packed is not None:
        edges = getattr(packed, "cu_seqlens_q", None)
        if edges is not None:
            return edges, getattr(packed, "cu_seqlens_q_padded", None)
    edges = next((named[name] for name in CU_SEQLENS_NAMES if named.get(name) is not None), None)
    return None if edges is None else (torch.as_tensor(edges), None)


def _past_length(cache: Any) -> int:
    """How many tokens the cache holds; known on the host."""
    for name in ("get_seq_length", "length"):
        value = getattr(cache, name, None)
        value = value() if callable(value) else value
        if isinstance(value, int):
            return value
        if isinstance(value, Tensor):  # a static cache counts on the GPU
            return int(value)
    if cache is not None:
        raise RecordError(f"a {type(cache).__name__} does not say how many tokens it holds. {_SAY_ROWS}")
    return 0


def _real_positions(tokens: Tensor, named: Mapping[str, Any], past: int) -> tuple[Tensor, Tensor]:
    count, length = tokens.shape
    mask = named.get("attention_mask")
    if isinstance(mask, Tensor) and mask.ndim == 2:
        if mask.shape != (count, past + length):
            raise RecordError(
                f"attention_mask is {list(mask.shape)}, and {past} cached and {length} new tokens need"
                f" [{count}, {past + length}]. {_SAY_ROWS}"
            )
        seen = mask.to(tokens.device).bool()
        return seen[:, past:], (seen.cumsum(1) - 1)[:, past:]
    shared = isinstance(mask, Tensor) and mask.ndim == 4 and mask.shape[0] == 1  # a causal mask, one for all sequences
    if mask is not None and not (shared and (count > 1 or "position_ids" in named)):
        what = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise RecordError(f"attention_mask is {what}, and only [batch, tokens] tells which tokens are padding. {_SAY_ROWS}")
    real = torch.ones(count, length, dtype=torch.bool, device=tokens.device)
    given = named.get("position_ids")
    if isinstance(given, Tensor):
        plain = given[0] if given.ndim == 3 else given  # of several axes of rope, the first counts
        return real, plain.to(tokens.device).expand(count, length)
    return real, torch.arange(past, past + length, device=tokens.device).expand(count, length)

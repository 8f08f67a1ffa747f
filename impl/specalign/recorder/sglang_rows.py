"""The rows of a forward of SGLang, out of its ForwardBatch (read in SGLang 0.5.16 and 0.5.23; not imported)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from specalign.dump.keys import RowKind
from specalign.recorder.batch import RowBatch
from specalign.recorder.errors import RecordError

HEALTH_CHECK = "HEALTH_CHECK"
"""With this the ids of health checks begin."""

EXTENDS = frozenset({"EXTEND", "MIXED", "SPLIT_PREFILL", "DLLM_EXTEND", "DRAFT_EXTEND", "DRAFT_EXTEND_V2"})
"""Forward modes in which a request has as many rows as `extend_seq_lens` says."""

FIXED = frozenset({"TARGET_VERIFY", "DRAFT_EXTEND_V2"})
"""Forward modes in which every request may have equally many rows, some of them at the same position."""

_IDLE = "IDLE"


def find_forward_batch(args: Iterable[Any], kwargs: Mapping[str, Any] | None = None) -> Any:
    """The ForwardBatch among the arguments of a module, or None."""
    for item in (*args, *(kwargs or {}).values()):
        if not isinstance(item, Tensor) and hasattr(item, "forward_mode") and hasattr(item, "input_ids"):
            return item
    return None


def forward_batch_rows(batch: Any) -> RowBatch | None:
    """Which row is what; None for a forward that the engine makes up by itself (warm-up, tuning): it has no request ids.

    Rows behind those of the requests are padding. Which rows of MIXED decode is not said; they count as prefill.

    Raises:
        RecordError: the ForwardBatch lacks what tells the rows.
    """
    mode = mode_name(batch)
    tokens = batch.input_ids
    if mode == _IDLE or (tokens is not None and tokens.numel() == 0):
        return _no_rows()
    if not hasattr(batch, "rids"):
        raise RecordError(
            "this SGLang's ForwardBatch has no rids, so that requests cannot be told apart: record with 0.5.16 or newer, or pass"
            " rows="
        )
    if batch.rids is None:
        return None
    if tokens is None or batch.positions is None:
        raise RecordError(f"a forward in mode {mode} has no input_ids or no positions (input embeddings?): pass rows=")
    ids = tuple(map(str, batch.rids))
    requests = _owners(batch, mode, len(ids), tokens.numel(), tokens.device)
    kind = RowKind.PREFILL if mode in EXTENDS - FIXED else RowKind.DECODE
    return RowBatch(
        tokens,
        _positions(batch, tokens),
        requests,
        _kinds(requests, ids, kind),
        ids,
        repeats=mode in FIXED or is_draft_batch(batch),
    )


def mode_name(batch: Any) -> str:
    """`EXTEND`, `DECODE`, …"""
    return str(getattr(batch.forward_mode, "name", batch.forward_mode))


def is_draft_batch(batch: Any) -> bool:
    """Whether a draft model runs here: SGLang gives it a spec_info of its own kind."""
    info = getattr(batch, "spec_info", None)
    return "Draft" in type(info).__name__ or mode_name(batch).startswith("DRAFT")


def _owners(batch: Any, mode: str, count: int, rows: int, device: torch.device) -> Tensor:
    """The request of each row, -1 behind the last; int32 `[rows]`."""
    lengths = getattr(batch, "extend_seq_lens_cpu", None)
    if lengths is None and mode in EXTENDS:
        lengths = batch.extend_seq_lens
    if mode in EXTENDS and lengths is not None and mode not in FIXED:
        lengths = [int(length) for length in lengths][:count]
    else:
        lengths = [_rows_each(batch, mode, count, rows)] * count
    if sum(lengths) > rows or len(lengths) != count:
        raise RecordError(f"a forward in mode {mode} has {rows} rows, and its {count} requests have {lengths}: pass rows=")
    counts = torch.tensor([*lengths, rows - sum(lengths)])
    owners = torch.repeat_interleave(torch.tensor([*range(count), -1], dtype=torch.int32), counts, output_size=rows)
    return owners.to(device, non_blocking=True)


def _rows_each(batch: Any, mode: str, count: int, rows: int) -> int:
    if mode == "DECODE":
        each = getattr(getattr(batch, "spec_info", None), "topk_p", None)  # a draft of several branches has one row for each
        return int(each.shape[-1]) if isinstance(each, Tensor) and rows >= count * each.shape[-1] else 1
    each = getattr(getattr(batch, "spec_info", None), "draft_token_num", None)
    if isinstance(each, int) and each > 0 and each * count <= rows:
        return each
    if count and rows % count == 0:
        return rows // count
    raise RecordError(f"a forward in mode {mode} has {rows} rows for {count} requests: how many each? Pass rows=")


def _positions(batch: Any, tokens: Tensor) -> Tensor:
    positions: Tensor = batch.positions
    if positions.ndim == 2:  # several axes of rope: the first counts
        positions = positions[0]
    return positions.reshape(-1)[: tokens.numel()]


def _kinds(requests: Tensor, ids: tuple[str, ...], kind: RowKind) -> Tensor:
    of_request = [int(RowKind.HEALTH_CHECK if name.startswith(HEALTH_CHECK) else kind) for name in ids]
    table = torch.tensor([*of_request, int(RowKind.PADDING)], dtype=torch.uint8).to(requests.device, non_blocking=True)
    return table[requests.long()]  # -1 is the last entry


def _no_rows() -> RowBatch:
    none = torch.zeros(0, dtype=torch.int64)
    return RowBatch(none, none, none, none, ())

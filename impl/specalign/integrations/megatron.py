"""Recording Megatron's model chunks. megatron-core is not imported: what is needed of it is there once the chunks are.

Read in megatron-core 0.16.1: chunks hold `decoder.layers`, whose layers carry their global number from 1 in `layer_number`,
take and return `[seq, batch, hidden]`, and return `(hidden, context)`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from specalign.capture.parts import find_parts
from specalign.capture.stages import Stage
from specalign.recorder.batch import RowBatch
from specalign.recorder.errors import RecordError
from specalign.recorder.finding import find_rows, named_arguments, packed_lengths, packed_rows
from specalign.recorder.names import RequestNames
from specalign.recorder.record import Recording, record_layers

AXES = {
    "tp": "tensor_model_parallel",
    "pp": "pipeline_model_parallel",
    "cp": "context_parallel",
    "dp": "data_parallel",
    "ep": "expert_model_parallel",
}
"""Axes of a dump's layout, and Megatron's words for them: `get_<word>_rank()` and `get_<word>_world_size()`."""


def record_megatron(chunks: nn.Module | Sequence[nn.Module], out: str | os.PathLike[str], **options: Any) -> Recording:
    """`record_layers` for the model chunks of this rank, as Megatron's training loop calls them (DDP and Float16Module or not).

        with record_megatron(model, "dump", layers=[0, 5]):
            forward_backward_func(forward_step_func=…, model=model, …)

    Stages come from `layer_number` and `config.num_layers`, so that several virtual-pipeline chunks go side by side; rows from
    `input_ids`, `position_ids` and `packed_seq_params`; ranks from Megatron's parallel state. Sequence parallelism (a block's
    output holds a slice of the rows) and context parallelism (zigzag) are recorded as such, one at a time.

    Args:
        chunks: the model, or the list of its virtual-pipeline chunks on this rank.
        options: those of `record_layers`; given ones win over what is found here. A stage whose forward gets no input_ids
            needs `rows`.

    Raises:
        RecordError: the blocks are no Megatron layers, or sequence and context parallelism are both on.
    """
    models = [chunks] if isinstance(chunks, nn.Module) else list(chunks)
    if not models:
        raise RecordError("there is no model chunk to record")
    config = _config(models[0])
    place = parallel_place()
    found: dict[str, Any] = {
        "stages": [stage_of(chunk, int(config.num_layers)) for chunk in models],
        "coords": tuple((axis, rank) for axis, (rank, size) in place.items() if size > 1),
        "layout": {axis: size for axis, (_, size) in place.items()},
        "order": "sequence_first",
    }
    tp, cp = place.get("tp", (0, 1)), place.get("cp", (0, 1))
    if getattr(config, "sequence_parallel", False):
        found["sequence_parallel"] = tp[1]
    if cp[1] > 1:
        if found.get("sequence_parallel", 1) > 1:
            raise RecordError("sequence and context parallelism are both on: a dump names one split of the rows. Turn one off")
        found["axes"] = {"*": "tokens@cp:zigzag", **options.pop("axes", {})}
        options.setdefault("rows", _zigzag_rows(models, cp, options.get("requests")))
    return record_layers(models, out, **{**found, **options})


def stage_of(chunk: nn.Module, num_layers: int) -> Stage:
    """Which blocks a chunk holds, by the numbers that its layers carry.

    Raises:
        RecordError: its layers carry none, or do not follow one another.
    """
    layers = list(_layers(chunk))
    numbers = [getattr(layer, "layer_number", None) for layer in layers]
    first = numbers[0] if numbers else None
    if not isinstance(first, int) or numbers != list(range(first, first + len(numbers))):
        raise RecordError(
            f"the layers of {type(chunk).__name__} carry the numbers {numbers[:8]}, which do not follow one another from 1: pass"
            " stages="
        )
    start, end = first - 1, first - 1 + len(numbers)
    return Stage(start, end, num_layers, first=start == 0, last=end == num_layers)


def parallel_place() -> dict[str, tuple[int, int]]:
    """(rank, size) on each axis of Megatron's parallel state; nothing where it was not initialized."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return {}
    found = {}
    for axis, word in AXES.items():
        rank, size = getattr(state, f"get_{word}_rank", None), getattr(state, f"get_{word}_world_size", None)
        if rank is not None and size is not None:
            found[axis] = (int(rank()), int(size()))
    return found


def _zigzag_rows(models: Sequence[nn.Module], cp: tuple[int, int], requests: Any) -> Any:
    if len(models) > 1:
        raise RecordError("context parallelism with virtual-pipeline chunks: pass rows=, which names the rows of each forward")
    names = RequestNames(requests)

    def rows(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RowBatch:
        named = named_arguments(models[0], args, kwargs)
        packed = packed_lengths(named)
        if packed is None and named.get("position_ids") is None:
            raise RecordError("context parallelism is on and the forward got no position_ids: which rows it holds cannot be told")
        if packed is None or named.get("input_ids") is None:
            batch = find_rows(models[0], args, kwargs, names)
        else:
            batch = packed_rows(named["input_ids"], *packed, names, cp=cp)
        names.forward += 1
        if batch is None:
            raise RecordError("the forward stands for no request")
        return batch

    return rows


def _config(chunk: nn.Module) -> Any:
    inner: Any = chunk
    while inner is not None and not hasattr(getattr(inner, "config", None), "num_layers"):
        inner = getattr(inner, "module", None)
    if inner is None:
        raise RecordError(f"{type(chunk).__name__} has no config with num_layers: is it a Megatron model? Use record_layers")
    return inner.config


def _layers(chunk: nn.Module) -> Sequence[nn.Module]:
    # Any stage will do here: the layers are what is asked for.
    for decoder in (module for name, module in chunk.named_modules() if name.split(".")[-1] == "decoder"):
        layers = getattr(decoder, "layers", None)
        if isinstance(layers, nn.ModuleList) and len(layers):
            return list(layers)
    return find_parts(chunk, blocks=None, final_norm=None, stage=None, needs_norm=False).blocks

"""Where the blocks and the final norm of a model are."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from torch import nn

from specalign.capture.errors import CaptureError
from specalign.capture.stages import Stage

WRAPPERS = ("", "module", "module.module", "base_model.model")
"""DDP and Megatron's Float16Module, alone or together; PEFT."""

STACKS = (
    "",
    "model",  # transformers, SGLang, vLLM
    "decoder",  # Megatron
    "model.decoder",  # OPT
    "transformer",  # GPT-2, Falcon
    "gpt_neox",
    "backbone",
    "language_model",
    "language_model.model",
    "model.language_model",  # transformers' vision-language models
)
BLOCKS = ("layers", "h", "blocks")
NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f", "norm_f", "final_norm")

ABSENT = "PPMissingLayer"
"""The class that SGLang and vLLM put where a block lies on another pipeline stage."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ModelParts:
    """The modules that capture needs. Boundary 0 is read where block 0 begins, so that no embedding is needed: what some models
    do after it (Gemma's scaling, added positions, dropout) belongs to boundary 0.

    Attributes:
        blocks: the blocks that run here, in order.
        final_norm: the norm after the last block, or None.
        stage: which blocks of the target these are.
    """

    blocks: tuple[nn.Module, ...]
    final_norm: nn.Module | None
    stage: Stage


def find_parts(
    model: nn.Module,
    *,
    blocks: Sequence[nn.Module] | None,
    final_norm: nn.Module | None,
    stage: Stage | None,
    needs_norm: bool,
) -> ModelParts:
    """The parts as given, or as found in `model` under the names of transformers, Megatron, SGLang and vLLM.

    Raises:
        CaptureError: nothing or more than one thing fits, or the blocks are not those of the stage.
    """
    parent: nn.Module | None = None
    if blocks is None:
        parent, found = _find_blocks(model)
        blocks = list(found)
    local = tuple(block for block in blocks if type(block).__name__ != ABSENT)
    _check_blocks(local, missing=len(blocks) - len(local), stage=stage)
    stage = Stage.whole(len(local)) if stage is None else stage
    needs_norm = needs_norm and stage.last
    if final_norm is None and parent is not None and needs_norm:
        final_norm = _find_norm(parent)
    if needs_norm and final_norm is None:
        raise CaptureError("POST_NORM is asked for and no final norm was found beside the blocks: pass final_norm=")
    return ModelParts(local, final_norm if needs_norm else None, stage)


def _find_blocks(model: nn.Module) -> tuple[nn.Module, nn.ModuleList]:
    found: dict[int, tuple[str, nn.Module, nn.ModuleList]] = {}
    for path, parent in _stacks(model):
        for name in BLOCKS:
            blocks = getattr(parent, name, None)
            if isinstance(blocks, nn.ModuleList) and len(blocks):
                found.setdefault(id(blocks), (f"{path}.{name}".lstrip("."), parent, blocks))
    if len(found) == 1:
        return next(iter(found.values()))[1:]
    what = "no blocks were found" if not found else "blocks were found in " + ", ".join(path for path, *_ in found.values())
    raise CaptureError(f"{type(model).__name__}: {what}. Pass blocks= (and final_norm= for POST_NORM), in the order they run in")


def _stacks(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for wrapper, stack in itertools.product(WRAPPERS, STACKS):
        path = f"{wrapper}.{stack}".strip(".")
        parent: object = model
        for name in path.split(".") if path else ():
            parent = getattr(parent, name, None)
        if isinstance(parent, nn.Module):
            yield path, parent


def _find_norm(parent: nn.Module) -> nn.Module | None:
    norms = {name: norm for name in NORMS if isinstance(norm := getattr(parent, name, None), nn.Module)}
    present = {name: norm for name, norm in norms.items() if type(norm).__name__ != ABSENT}
    if len(present) > 1:
        raise CaptureError(f"{type(parent).__name__} has {', '.join(present)}: pass final_norm=, the one after the last block")
    return next(iter(present.values()), None)


def _check_blocks(blocks: tuple[nn.Module, ...], *, missing: int, stage: Stage | None) -> None:
    strangers = [type(block).__name__ for block in blocks if not isinstance(block, nn.Module)]
    if strangers or not blocks:
        raise CaptureError(f"blocks must be modules, one at least, not {strangers or 'none'}")
    if len({id(block) for block in blocks}) < len(blocks):
        raise CaptureError("one module stands for several blocks: which boundary its output is cannot be told from a hook")
    if stage is None and (missing or _megatron_number(blocks[0]) != 1):
        raise CaptureError(
            f"the model holds a part of its blocks only ({len(blocks)} here"
            + (f", {missing} on other pipeline stages" if missing else f", the first is layer {_megatron_number(blocks[0])}")
            + "): pass stage=StageLayout(...).stage(i) and join the stages with extend()"
        )
    if stage is not None and len(blocks) != stage.end - stage.start:
        raise CaptureError(f"{len(blocks)} blocks for a stage of blocks {stage.start}..{stage.end - 1}")
    if stage is not None and _megatron_number(blocks[0]) not in (1, stage.start + 1):
        raise CaptureError(f"the first block is layer {_megatron_number(blocks[0])}, and the stage begins with {stage.start + 1}")


def _megatron_number(block: nn.Module) -> int:
    """Megatron numbers layers globally, from 1; other blocks count as the first."""
    number = getattr(block, "layer_number", 1)
    return number if isinstance(number, int) else 1

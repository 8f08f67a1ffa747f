"""Loading a head, strictly: every tensor of the file is used and every parameter is filled, or one error lists both.

Names are compared by whole path segments after an optional leading `model.`. The legacy names that engines still take are
`midlayer` (now `layers.0`) and `aux_norm_low`, `aux_norm_mid`, `aux_norm_high` (now `fc_norm.0`, `.1`, `.2`); SGLang 0.5.23
replaces them as substrings (`llama_eagle3.py:337-347`), so that `aux_norm_lower` loads as `fc_norm.0er`, that is, not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import safetensors
import torch

from specalign.draft.config import Eagle3Config, LaterNorm, read_eagle3_config
from specalign.draft.eagle3 import Eagle3Head
from specalign.draft.errors import DraftError
from specalign.draft.plan import Borrowed, LoadPlan, later_norm_of, path_of, plan_loading
from specalign.draft.vocab import make_vocab
from specalign.layer_ids.files import shown
from specalign.layer_ids.tensor_files import pickled_weights, read_tensor_facts

_DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def load_eagle3(
    folder: Path,
    *,
    borrowed: Borrowed | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    model_vocab_size: int | None = None,
    later_norm: LaterNorm | None = None,
) -> Eagle3Head:
    """The head in `folder`, ready to run (gradients off).

    Args:
        folder: holds config.json and safetensors files.
        borrowed: the target's embed_tokens and lm_head, for heads that have none of their own. What the file holds wins.
        dtype: of all parameters; None for the one that all floating tensors of the file share.
        device: of all parameters.
        model_vocab_size: vocabulary of the target that will verify; d2t may not reach beyond it.
        later_norm: see `Eagle3Config`; None takes what the file holds in layers 1..k-1.

    Raises:
        InputError: a file that cannot be read.
        DraftError: as `parse_eagle3_config`, `make_vocab` and `build_eagle3`.
    """
    tensors = read_tensors(folder)
    config = read_eagle3_config(folder, later_norm=later_norm or later_norm_of(tensors) or "input_layernorm")
    return build_eagle3(
        config, tensors, borrowed=borrowed, dtype=dtype, device=device, model_vocab_size=model_vocab_size, name=shown(folder)
    )


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of every safetensors file that belongs to `folder`, by its name in the file, on the CPU.

    Raises:
        InputError: headers that break the format, a shard that is missing, or one tensor in two files.
        DraftError: no safetensors, or headers without all of their data.
    """
    facts = read_tensor_facts(folder)
    if facts is None:
        pickles = pickled_weights(folder)
        hint = f"only pickles ({', '.join(pickles[:3])}), which are never opened; convert them" if pickles else "put one there"
        raise DraftError(f"{shown(folder)}: no safetensors file; {hint}")
    cut = sorted(name for name, info in facts.tensors.items() if info.span is None)
    if cut or not facts.complete:
        raise DraftError(
            f"{shown(folder)}: headers without their weights ({len(cut)} tensors, {', '.join(cut[:3])}); download whole files"
        )
    tensors: dict[str, torch.Tensor] = {}
    for file in facts.files:
        with safetensors.safe_open(file, framework="pt") as handle:
            # Copied: a mapped tensor starts at any byte, CPU kernels round differently by alignment, and the file may change.
            tensors |= {name: handle.get_tensor(name).clone() for name in handle.keys()}  # noqa: SIM118
    return tensors


def build_eagle3(
    config: Eagle3Config,
    tensors: Mapping[str, torch.Tensor],
    *,
    borrowed: Borrowed | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    model_vocab_size: int | None = None,
    name: str = "draft head",
) -> Eagle3Head:
    """The head of `config` with exactly these weights.

    Args:
        config: of the head.
        tensors: by the names of a checkpoint, d2t and t2d included. They are copied only where dtype or device change.
        borrowed: as `load_eagle3`.
        dtype: as `load_eagle3`.
        device: as `load_eagle3`.
        model_vocab_size: as `load_eagle3`.
        name: how messages call it.

    Raises:
        DraftError: one message that lists tensors that nothing uses, parameters that nothing fills, wrong shapes and names
            that meet in one parameter; several dtypes and no `dtype`; a dtype that holds no plain weights; a d2t fault.
    """
    borrowed = borrowed or Borrowed()
    plan = plan_loading(config, {key: tuple(value.shape) for key, value in tensors.items()}, borrowed=borrowed)
    if not plan.ok:
        raise DraftError(f"{name}: {plan.format()}")
    chosen = _dtype(tensors, plan, dtype, name)
    vocab = make_vocab(
        size=config.draft_vocab,
        target_size=config.vocab_size,
        d2t=_special(tensors, "d2t"),
        t2d=_special(tensors, "t2d"),
        model_size=model_vocab_size,
    )
    head = Eagle3Head(config, vocab, device="meta", dtype=chosen)
    sources = {**{parameter: tensors[source] for parameter, source in plan.filled.items()}, **borrowed.named(plan.borrowed)}
    head.load_state_dict({key: value.detach().to(device, chosen) for key, value in sources.items()}, strict=True, assign=True)
    return head.requires_grad_(False).eval()


def _special(tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor | None:
    return next((value for key, value in tensors.items() if path_of(key) == name), None)


def _dtype(tensors: Mapping[str, torch.Tensor], plan: LoadPlan, dtype: torch.dtype | None, name: str) -> torch.dtype:
    found = _by_dtype(tensors, plan.filled.values())
    for odd in found.keys() - set(_DTYPES):
        raise DraftError(f"{name}: {found[odd]} is {odd}: quantized weights are not supported; export the head in bf16")
    if dtype is None and len(found) > 1:
        several = ", ".join(f"{key} ({value})" for key, value in sorted(found.items(), key=str))
        raise DraftError(f"{name}: weights of several dtypes: {several}; say which one with dtype=")
    return dtype or next(iter(found))


def _by_dtype(tensors: Mapping[str, torch.Tensor], names: Iterable[str]) -> dict[torch.dtype, str]:
    return {tensors[name].dtype: name for name in sorted(names, reverse=True)}


__all__ = ["Borrowed", "LoadPlan", "build_eagle3", "load_eagle3", "plan_loading", "read_tensors"]

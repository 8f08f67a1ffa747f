"""Weights of a GPT-OSS model: from a transformers checkpoint, strictly, or random.

Strictly: every tensor of the files is used, every parameter is filled, or one error lists what is not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import Tensor

from specalign.layer_ids.files import quoted, read_json_object, shown
from specalign.layer_ids.tensor_files import TensorFacts, pickled_weights, read_tensor_facts
from specalign.models.errors import ModelConfigError, WeightsError
from specalign.models.gpt_oss import GptOss
from specalign.models.gpt_oss_config import GptOssConfig
from specalign.models.mxfp4 import BLOCK, dequantize_mxfp4

_RENAMED: Final = (
    (r"^embed\.", "model.embed_tokens."),
    (r"^final_norm\.", "model.norm."),
    (r"^head\.", "lm_head."),
    (r"^blocks\.", "model.layers."),
    (r"\.attention_norm\.", ".input_layernorm."),
    (r"\.attention\.", ".self_attn."),
    (r"\.moe_norm\.", ".post_attention_layernorm."),
    (r"\.moe\.", ".mlp."),
)
_FLOATS: Final = frozenset({"F32", "BF16", "F16"})
_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_gpt_oss(folder: Path | str, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu") -> GptOss:
    """The model of a transformers checkpoint: `config.json` and safetensors files, one or several with an index.

    MXFP4 experts (`*_blocks`, `*_scales`) are dequantized. The parameters do not require gradients.

    Args:
        folder: of the checkpoint.
        dtype: of all parameters; None takes `dtype` (or `torch_dtype`) of the config.
        device: where they go.

    Raises:
        InputError: a file that is missing, damaged or ambiguous.
        ModelConfigError: a config of something else, or without a dtype where none is given.
        WeightsError: tensors that are missing, unused, of the wrong shape or dtype, all listed; MXFP4 values beyond `dtype`.
    """
    folder = Path(folder)
    raw = read_json_object(folder / "config.json")
    config = GptOssConfig.from_dict(raw, name=shown(folder / "config.json"))
    dtype = dtype or _config_dtype(raw, folder)
    with torch.device("meta"):
        model = GptOss(config)
    facts = _read_facts(folder)
    sources = _match(facts, {name: tuple(p.shape) for name, p in model.named_parameters()}, folder)
    with contextlib.ExitStack() as stack:
        read = _reader(stack, facts, torch.device(device))
        tensors = {name: source.read(read, dtype) for name, source in sources.items()}
    model.load_state_dict(tensors, strict=True, assign=True)
    return model.eval().requires_grad_(False)


def random_gpt_oss(
    config: GptOssConfig, *, seed: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> GptOss:
    """A model with normal weights of the config's `initializer_range` (biases and sinks too) and norms of one.

    The same seed gives the same weights on the same kind of device. The parameters do not require gradients.
    """
    generator = torch.Generator(device).manual_seed(seed)
    with torch.device("meta"):
        model = GptOss(config)
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[name] = torch.ones(parameter.shape, dtype=dtype, device=device)
        if not name.endswith("norm.weight"):
            tensors[name].normal_(0.0, config.initializer_range, generator=generator)
    model.load_state_dict(tensors, strict=True, assign=True)
    return model.eval().requires_grad_(False)


def checkpoint_name(parameter: str) -> str:
    """The name in a transformers checkpoint of a parameter here: `blocks.0.moe.…` is `model.layers.0.mlp.…`."""
    for pattern, name in _RENAMED:
        parameter = re.sub(pattern, name, parameter)
    return parameter


_Read = Callable[[str], Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class _Source:
    """The tensors of the file that make one parameter: one, or blocks and scales."""

    names: tuple[str, ...]

    def read(self, read: _Read, dtype: torch.dtype) -> Tensor:
        if len(self.names) == 1:
            return read(self.names[0]).to(dtype)
        try:
            return dequantize_mxfp4(read(self.names[0]), read(self.names[1]), dtype=dtype)
        except WeightsError as error:
            raise WeightsError(f"{self.names[0]}: {error}") from None


def _config_dtype(raw: dict[str, object], folder: Path) -> torch.dtype:
    stated = raw.get("dtype") or raw.get("torch_dtype")
    if not isinstance(stated, str) or stated not in _DTYPES:
        raise ModelConfigError(
            f"{shown(folder / 'config.json')}: dtype is {quoted(stated)}, not one of {', '.join(_DTYPES)}; pass dtype="
        )
    return _DTYPES[stated]


def _read_facts(folder: Path) -> TensorFacts:
    facts = read_tensor_facts(folder)
    if facts is None:
        pickles = pickled_weights(folder)
        hint = f"; {pickles[0]} is a pickle and is never read, convert it to safetensors" if pickles else ""
        raise WeightsError(f"{shown(folder)}: no safetensors files{hint}")
    absent = sorted(facts.listed - facts.tensors.keys())
    headers_only = [info.file for info in facts.tensors.values() if info.span is None]
    if not facts.complete or headers_only:
        raise WeightsError(f"{shown(folder)}: shards are missing, or headers without their data; download the whole checkpoint")
    if absent or facts.unread:
        files = ", ".join(shown(file.name) for file in facts.unread)
        raise WeightsError(
            f"{shown(folder)}: the index and the files differ: {_list('listed but in no file', absent)}"
            f"{f'; files that the index does not name: {files}' if files else ''}; download the index again, or remove the rest"
        )
    return facts


def _match(facts: TensorFacts, parameters: dict[str, tuple[int, ...]], folder: Path) -> dict[str, _Source]:
    """Where each parameter comes from; what does not fit is collected and raised in one error."""
    expected = {name: _expected(facts, checkpoint_name(name), shape) for name, shape in parameters.items()}
    shapes = {name: shape for wanted in expected.values() for name, shape in wanted.items()}
    lists = (
        _list("missing", [name for name in shapes if name not in facts.tensors]),
        _list("not used", sorted(facts.tensors.keys() - shapes.keys())),
        _list("not as the config says", [message for name in shapes if (message := _misfit(facts, name, shapes[name]))]),
    )
    if any(lists):
        raise WeightsError(
            f"{shown(folder)}: the tensors do not fit the config: {'; '.join(filter(None, lists))}; do the two belong together?"
        )
    return {name: _Source(tuple(wanted)) for name, wanted in expected.items()}


def _expected(facts: TensorFacts, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """The file's tensors for one parameter, with their shapes: itself, or blocks and scales where the file has one of these.

    A matrix `[experts, in, out]` is packed along `in`. One whose `in` is no multiple of 32 cannot be packed, so it is asked for
    itself, and its blocks are reported as not used.
    """
    blocks, scales = f"{name}_blocks", f"{name}_scales"
    packed = blocks in facts.tensors or scales in facts.tensors
    if not packed or len(shape) != 3 or shape[1] % BLOCK:
        return {name: shape}
    experts, width, rows = shape
    return {blocks: (experts, rows, width // BLOCK, BLOCK // 2), scales: (experts, rows, width // BLOCK)}


def _misfit(facts: TensorFacts, name: str, shape: tuple[int, ...]) -> str:
    info = facts.tensors.get(name)
    if info is None:
        return ""
    dtypes = {"U8"} if name.endswith(("_blocks", "_scales")) else _FLOATS
    if info.shape == shape and info.dtype in dtypes:
        return ""
    return f"{name} is {info.dtype} {list(info.shape)}, wanted {'/'.join(sorted(dtypes))} {list(shape)}"


def _list(what: str, names: list[str], limit: int = 20) -> str:
    if not names:
        return ""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{what} ({len(names)}): {', '.join(names[:limit])}{more}"


def _reader(stack: contextlib.ExitStack, facts: TensorFacts, device: torch.device) -> _Read:
    opened: dict[Path, Any] = {}

    def read(name: str) -> Tensor:
        file = facts.tensors[name].file
        if file not in opened:
            opened[file] = stack.enter_context(safe_open(file, framework="pt"))
        # A copy even where nothing is converted: the file's pages must not live on behind the model's weights.
        tensor: Tensor = opened[file].get_tensor(name)
        return tensor.to(device, copy=True)

    return read

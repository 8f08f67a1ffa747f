"""Which key of ours an SGLang module's output belongs under.

SGLang's blocks return `(hidden, residual)`, to be added by the next norm; its fused norms return `(normed, residual)`, where the
residual is that sum, rounded. So a boundary can stand twice in one pass: as a block's pair and as the residual of the norm
behind it. The pair is taken and the residual must equal it bit for bit; without the pair the residual is the boundary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from specalign.dump.errors import DumpError
from specalign.dump.files import reading
from specalign.dump.keys import LOGITS, POST_NORM_KEY, boundary_key, module_key
from specalign.dump.readers.entries import Entry, FileTensor, entry
from specalign.layer_ids.files import is_there, quoted, read_json_object

Outputs = Mapping[str, Sequence[FileTensor]]
"""What each module returned in one forward, by its path in the model."""

_BLOCK: Final = re.compile(r"(?P<top>(?:.+?\.)?)layers\.(?P<layer>\d{1,6})(?P<rest>(?:\..+)?)")
_LOGITS: Final = "logits_processor"


def top_module(names: Sequence[str]) -> str:
    """The module that holds the blocks: "model" of `model.layers.3.mlp`; "model" if there is none.

    Raises:
        DumpError: several, as in a model that also has a vision tower.
    """
    tops = {match["top"].rstrip(".") for match in map(_BLOCK.fullmatch, names) if match}
    if len(tops) > 1:
        raise DumpError(f"blocks lie under {', '.join(sorted(tops))}: record the text model only, so that boundaries are its own")
    return tops.pop() if tops else "model"


def place(outputs: Outputs, top: str, num_layers: int | None, where: str) -> dict[str, Entry]:
    """The entries that one forward's module outputs give.

    Args:
        outputs: of one forward and one rank.
        top: the module that holds the blocks, see `top_module`.
        num_layers: n, if it is known; else the last recorded block is taken for the last one if blocks 0, 1, … are recorded.
        where: how messages name the pass.

    Raises:
        DumpError: a block that returns something else than a tensor or a pair, or a name that is no key.
    """
    found: dict[str, Entry] = {}
    sums: list[tuple[int, str, FileTensor]] = []
    for name, parts in outputs.items():
        _place_one(name, parts, top, where, found, sums)
    n = num_layers if num_layers is not None else _last_boundary(found)
    for number, name, tensor in sums:
        _place_sum(n if number < 0 else number, name, tensor, found)
    _place_top(outputs.get(top, ()), top, found)
    return found


def _place_one(
    name: str,
    parts: Sequence[FileTensor],
    top: str,
    where: str,
    found: dict[str, Entry],
    sums: list[tuple[int, str, FileTensor]],
) -> None:
    prefix = f"{top}." if top else ""
    block = _BLOCK.fullmatch(name)
    layer = int(block["layer"]) if block and block["top"] == prefix else None
    if name == top or not parts:
        return
    if layer is not None and block is not None and not block["rest"]:
        if len(parts) > 2:
            raise DumpError(f"{where}: {name} returned {len(parts)} tensors, not hidden states or (delta, residual)")
        _add(found, entry(boundary_key(layer + 1), *parts, site="post-block"))
    elif name == f"{prefix}embed_tokens" and len(parts) == 1:
        _add(found, entry(boundary_key(0), *parts, site="pre-block"))
    elif name == f"{prefix}norm":
        _add(found, entry(POST_NORM_KEY, parts[0], site="post-norm"))
        if _is_fused(parts):
            sums.append((-1, f"the residual of {name}", parts[1]))
    elif name.rpartition(".")[2] == _LOGITS and len(parts) == 1:
        _add(found, entry(LOGITS, *parts))
    else:
        _place_module(name, parts, layer, found)
        if layer is not None and block is not None and block["rest"] == ".input_layernorm" and _is_fused(parts):
            sums.append((layer, f"the residual of {name}", parts[1]))


def _is_fused(parts: Sequence[FileTensor]) -> bool:
    # An FP32 residual beside a BF16 norm is the sum before it is rounded: another tensor than the boundary.
    return len(parts) == 2 and (parts[0].dtype, parts[0].shape) == (parts[1].dtype, parts[1].shape)


def _place_module(name: str, parts: Sequence[FileTensor], layer: int | None, found: dict[str, Entry]) -> None:
    key = module_key(name, layer)
    if len(parts) == 1:
        _add(found, entry(key, parts[0]))
        return
    for index, part in enumerate(parts):
        _add(found, entry(f"{key}.{index}", part))


def _place_sum(number: int | None, name: str, tensor: FileTensor, found: dict[str, Entry]) -> None:
    if number is None:  # the last boundary, of a model whose depth is not known
        _add(found, entry(module_key(name.removeprefix("the residual of ") + ".1"), tensor))
        return
    key = boundary_key(number)
    made = found.get(key)
    found[key] = entry(key, tensor, site="pre-block") if made is None else made.with_twin(name, tensor)


def _place_top(parts: Sequence[FileTensor], top: str, found: dict[str, Entry]) -> None:
    normed = found.get(POST_NORM_KEY)
    if not parts:
        return
    if normed is not None:
        # With EAGLE capture the model returns (normed, captured states).
        found[POST_NORM_KEY] = normed.with_twin(f"the output of {top}", parts[0])
        parts = parts[1:]
    if parts:
        _place_module(top or "model", parts, None, found)


def _last_boundary(found: Mapping[str, Entry]) -> int | None:
    ends = {int(key.removeprefix("boundary.")) for key in found if key.startswith("boundary.")} - {0}
    return max(ends) if ends and ends == set(range(1, max(ends) + 1)) else None


def _add(found: dict[str, Entry], made: Entry) -> None:
    if made.spec.key in found:
        raise DumpError(f"two modules give {made.spec.key}; which one is meant?")
    found[made.spec.key] = made


def read_model_dims(folder: Path) -> dict[str, str | int]:
    """What a `config.json` beside the files says of the model: num_layers, hidden_size, vocab_size, name; {} without one.

    Raises:
        DumpError: there is one that cannot be read.
    """
    path = folder / "config.json"
    with reading():
        config = read_json_object(path) if is_there(path) else {}
    text = config.get("text_config")
    source = {**config, **text} if isinstance(text, dict) else config
    dims: dict[str, str | int] = {}
    for name, field in (("num_layers", "num_hidden_layers"), ("hidden_size", "hidden_size"), ("vocab_size", "vocab_size")):
        value = source.get(field)
        if type(value) is int and value > 0:
            dims[name] = value
        elif value is not None:
            raise DumpError(f"{path}: {field} is {quoted(value)}, which is no number of layers, channels or tokens")
    if isinstance(config.get("model_type"), str):
        dims["name"] = str(config["model_type"])
    return dims

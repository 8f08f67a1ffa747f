"""Which tensor of a file fills which parameter of a head, decided from names and shapes before anything is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

import torch

from specalign.draft.config import Eagle3Config, LaterNorm
from specalign.draft.eagle3 import Eagle3Head
from specalign.draft.errors import DraftError
from specalign.draft.vocab import DraftVocab

LEGACY: Final[Mapping[str, str]] = {
    "midlayer": "layers.0",
    "aux_norm_low": "fc_norm.0",
    "aux_norm_mid": "fc_norm.1",
    "aux_norm_high": "fc_norm.2",
}
"""Old segment → today's path."""

_FC_INPUT: Final = ("fc", "input_norm", "fc_norm")
"""First segments that live in `Eagle3Head.fc_input`."""

_SPECIAL: Final = ("d2t", "t2d")
_Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Borrowed:
    """The target's own tensors, which a head without them shares.

    Attributes:
        embed_tokens: [vocab_size, hidden_size].
        lm_head: [vocab_size, hidden_size]; used only where the config leaves draft_vocab_size open.
    """

    embed_tokens: torch.Tensor | None = None
    lm_head: torch.Tensor | None = None

    def named(self, parameters: Iterable[str]) -> dict[str, torch.Tensor]:
        """These tensors by the names of the parameters that they fill."""
        have = {"embed_tokens.weight": self.embed_tokens, "lm_head.weight": self.lm_head}
        return {name: tensor for name in parameters if (tensor := have.get(name)) is not None}


@dataclasses.dataclass(frozen=True, slots=True)
class LoadPlan:
    """What goes where. Parameters are called as in `Eagle3Head.state_dict()`, tensors as in the file.

    Attributes:
        filled: parameter → tensor of the file.
        borrowed: parameters that the target's tensors fill.
        ignored: tensors that carry nothing of their own: rotary inv_freq, which is computed.
        unused: tensors that no parameter takes.
        missing: parameters (and d2t) that nothing fills, by their names in files, each with what to do if that is known.
        shapes: lines about tensors of another shape than their parameter.
        clashes: lines about several tensors for one parameter.
    """

    filled: Mapping[str, str]
    borrowed: tuple[str, ...]
    ignored: tuple[str, ...]
    unused: tuple[str, ...]
    missing: tuple[str, ...]
    shapes: tuple[str, ...]
    clashes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Every tensor is used and every parameter filled."""
        return not (self.unused or self.missing or self.shapes or self.clashes)

    def format(self) -> str:
        """One paragraph: what fits, or every tensor and parameter that does not."""
        if self.ok:
            more = f", {len(self.borrowed)} from the target ({', '.join(self.borrowed)})" if self.borrowed else ""
            return f"{len(self.filled)} parameters from the file{more}, {len(self.ignored)} computed tensors ignored"
        parts = (
            ("{n} tensors of the file that nothing in this head uses", self.unused),
            ("{n} parameters that nothing fills", self.missing),
            ("{n} tensors of the wrong shape", self.shapes),
            ("{n} parameters named twice", self.clashes),
        )
        said = [f"{title.format(n=len(lines))}: {', '.join(lines)}" for title, lines in parts if lines]
        return (
            "; ".join(said) + ". Next: check that this config.json belongs to these weights (norm flags, ids, layers, vocabulary)"
        )


def path_of(name: str) -> str:
    """A tensor's name as new files have it: without `model.`, with legacy segments replaced, whole segments only."""
    segments = name.split(".")
    if segments[0] == "model" and len(segments) > 1:
        segments = segments[1:]
    return ".".join([LEGACY.get(segments[0], segments[0]), *segments[1:]])


def parameter_of(name: str) -> str:
    """The parameter of `Eagle3Head` that a tensor of this name fills, if there is one."""
    path = path_of(name)
    return f"fc_input.{path}" if path.split(".")[0] in _FC_INPUT else path


def later_norm_of(names: Iterable[str]) -> LaterNorm | None:
    """The norm before attention that a file holds in layers 1..k-1; None for a head of one layer.

    Raises:
        DraftError: both kinds. vLLM and speculators would run one, SGLang 0.5.23 the other.
    """
    paths = [path_of(name).split(".") for name in names]
    found = {
        p[2] for p in paths if len(p) == 4 and p[0] == "layers" and p[1] != "0" and p[2] in ("input_layernorm", "hidden_norm")
    }
    if len(found) > 1:
        raise DraftError(
            "the layers after the first hold input_layernorm and hidden_norm: vLLM runs the former, SGLang 0.5.23 the latter, and"
            " the other weight is dead; remove it from the file"
        )
    if not found:
        return None
    return "hidden_norm" if "hidden_norm" in found else "input_layernorm"


def plan_loading(config: Eagle3Config, shapes: Mapping[str, _Shape], *, borrowed: Borrowed | None = None) -> LoadPlan:
    """Which of the tensors `shapes` (name → shape) fills which parameter of a head with `config`. Raises nothing: see `ok`."""
    borrowed = borrowed or Borrowed()
    expected = _expected(config)
    ignored = tuple(sorted(name for name in shapes if name.split(".")[-2:] == ["rotary_emb", "inv_freq"]))
    takers = _takers(name for name in shapes if name not in ignored)
    special = {path: takers.pop(path) for path in _SPECIAL if path in takers}
    filled = {parameter: names[0] for parameter, names in takers.items() if parameter in expected}
    gaps = expected.keys() - filled.keys()
    lent = tuple(sorted(gaps & borrowed.named(_lendable(config)).keys()))
    need_d2t = config.draft_vocab < config.vocab_size and "d2t" not in special
    given = {parameter: (name, shapes[name]) for parameter, name in filled.items()}
    return LoadPlan(
        filled=filled,
        borrowed=lent,
        ignored=ignored,
        unused=tuple(sorted(name for key, names in takers.items() if key not in expected for name in names)),
        missing=(*(_missing(config, key) for key in sorted(gaps - set(lent))), *(("d2t",) if need_d2t else ())),
        shapes=tuple(_misfits(expected, given | _lent(borrowed, lent))),
        clashes=tuple(f"{key} by {' and '.join(names)}" for key, names in sorted((takers | special).items()) if len(names) > 1),
    )


def _expected(config: Eagle3Config) -> dict[str, _Shape]:
    vocab = DraftVocab(config.draft_vocab, config.vocab_size)
    return {key: tuple(value.shape) for key, value in Eagle3Head(config, vocab, device="meta").state_dict().items()}


def _takers(names: Iterable[str]) -> dict[str, list[str]]:
    takers: dict[str, list[str]] = {}
    for name in sorted(names):
        takers.setdefault(parameter_of(name), []).append(name)
    return takers


def _lendable(config: Eagle3Config) -> tuple[str, ...]:
    return ("embed_tokens.weight", "lm_head.weight") if config.borrows_lm_head else ("embed_tokens.weight",)


def _lent(borrowed: Borrowed, names: Iterable[str]) -> dict[str, tuple[str, _Shape]]:
    return {key: (f"the target's {key}", tuple(value.shape)) for key, value in borrowed.named(names).items()}


def _misfits(expected: Mapping[str, _Shape], given: Mapping[str, tuple[str, _Shape]]) -> list[str]:
    return [
        f"{name} {list(shape)} against {list(expected[parameter])}"
        for parameter, (name, shape) in sorted(given.items())
        if shape != expected[parameter]
    ]


def _missing(config: Eagle3Config, parameter: str) -> str:
    name = parameter.removeprefix("fc_input.")
    if name == "embed_tokens.weight" or (name == "lm_head.weight" and config.borrows_lm_head):
        return f"{name} (lend the target's with borrowed=)"
    if name == "lm_head.weight":
        return f"{name} (the config states draft_vocab_size {config.draft_vocab}, so it is not the target's)"
    return name

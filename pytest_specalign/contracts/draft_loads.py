"""Checkpoints for `DraftNormContract.load`: whole ones, and ones in which something is missing, left over or wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from pytest_specalign.contracts import draft_heads as heads
from pytest_specalign.contracts.base import Strategy
from pytest_specalign.contracts.draft_cases import SMALL_VOCABULARY, at_last_place
from pytest_specalign.contracts.draft_heads import DraftCase, Norms

from hypothesis import strategies as st  # isort: skip

if TYPE_CHECKING:
    from pytest_specalign.contracts.draft_norm import DraftNormContract

Tensors = dict[str, Tensor]
_NORMS: Final[tuple[Norms, ...]] = ("none", "whole", "chunk")


@dataclasses.dataclass(frozen=True, slots=True)
class LoadCase:
    """A checkpoint that was changed in one way.

    Attributes:
        head: the head that the config describes.
        change: what was done to the tensors, in words; "" for nothing.
        fault: the known fault of code that takes the checkpoint all the same; "" for one that must load.
        removed: tensors that are missing.
        added: tensors that the head does not have.
        d2t: values in place of the d2t, or None.
        renamed: (old segment, new segment) pairs.
    """

    head: DraftCase
    change: str = ""
    fault: str = ""
    removed: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    d2t: tuple[int, ...] | None = None
    renamed: tuple[tuple[str, str], ...] = ()

    def tensors(self) -> Tensors:
        whole = heads.checkpoint(self.head)
        kept = {name: tensor for name, tensor in whole.items() if name not in self.removed}
        if self.d2t is not None:
            kept["d2t"] = torch.tensor(self.d2t, dtype=torch.int64)
        for old, new in self.renamed:
            kept = {name.replace(old, new, 1): tensor for name, tensor in kept.items()}
        return kept | {name: torch.ones(heads.HIDDEN) for name in self.added}


def _head(cls: type[DraftNormContract], norms: Norms, vocabulary: int = SMALL_VOCABULARY) -> DraftCase:
    return DraftCase(norms, flags=at_last_place(cls, norms), vocabulary=vocabulary)


def whole(cls: type[DraftNormContract]) -> Strategy:
    return st.sampled_from(whole_examples(cls))


def whole_examples(cls: type[DraftNormContract]) -> list[LoadCase]:
    return [LoadCase(_head(cls, norms, v)) for norms in _NORMS for v in (SMALL_VOCABULARY, heads.VOCABULARY)]


def legacy(cls: type[DraftNormContract]) -> Strategy:
    return st.sampled_from(legacy_examples(cls))


def legacy_examples(cls: type[DraftNormContract]) -> list[LoadCase]:
    low, mid, high = ((f"fc_norm.{i}.", f"aux_norm_{name}.") for i, name in enumerate(("low", "mid", "high")))
    layer = ("layers.0.", "midlayer.")
    return [
        LoadCase(_head(cls, "none"), "midlayer.* for layers.0.*", renamed=(layer,)),
        LoadCase(_head(cls, "chunk"), "aux_norm_low, _mid, _high for fc_norm.0, .1, .2", renamed=(layer, low, mid, high)),
    ]


def missing(cls: type[DraftNormContract]) -> Strategy:
    """Any one tensor is missing that nothing else can stand for."""

    def without(norms: Norms) -> Strategy:
        head = _head(cls, norms)
        names = [n for n in heads.checkpoint(head) if n not in ("d2t", "lm_head.weight", "embed_tokens.weight")]
        return st.sampled_from(names).map(lambda n: LoadCase(head, f"no {n}", "missing-tensors-not-noticed", removed=(n,)))

    return st.sampled_from(_NORMS).flatmap(without)


def missing_examples(cls: type[DraftNormContract]) -> list[LoadCase]:
    head = _head(cls, "whole")
    return [LoadCase(head, "no input_norm.weight", "missing-tensors-not-noticed", removed=("input_norm.weight",))]


_UNKNOWN: Final = (
    "layers.0.self_attn.extra.weight",
    "layers.1.input_layernorm.weight",
    "aux_norm_lower.weight",
    "amidlayer.hidden_norm.weight",
    "fc_norm.7.weight",
    "nrom.weight",
)


def unknown(cls: type[DraftNormContract]) -> Strategy:
    return st.sampled_from(_UNKNOWN).map(
        lambda name: LoadCase(_head(cls, "none"), f"{name} too", "unknown-tensors-dropped", added=(name,))
    )


def unused_norm_examples(cls: type[DraftNormContract]) -> list[LoadCase]:
    """The norm's weight is in the file, and no flag asks for the norm."""
    head = dataclasses.replace(_head(cls, "whole"), flags=())
    return [LoadCase(head, "input_norm.weight, which no flag asks for", "norm-weight-left-over")]


def unused_norm(cls: type[DraftNormContract]) -> Strategy:
    return st.sampled_from(unused_norm_examples(cls))


def no_lm_head_examples(cls: type[DraftNormContract]) -> list[LoadCase]:
    sizes = [SMALL_VOCABULARY, *([] if cls.borrows_lm_head else [heads.VOCABULARY])]
    made = [(v, f"no lm_head.weight, draft_vocab_size {v} of {heads.VOCABULARY}") for v in sizes]
    return [LoadCase(_head(cls, "none", v), what, "lm_head-missing-not-noticed", removed=("lm_head.weight",)) for v, what in made]


def no_lm_head(cls: type[DraftNormContract]) -> Strategy:
    return st.sampled_from(no_lm_head_examples(cls))


def bad_d2t_examples(cls: type[DraftNormContract]) -> list[LoadCase]:
    head, size = _head(cls, "none"), SMALL_VOCABULARY
    zeros = (0,) * size
    made: list[tuple[str, tuple[int, ...]]] = [
        ("d2t = arange, which as offsets leaves the vocabulary", tuple(range(size))),
        ("d2t one too short", zeros[1:]),
        ("d2t points past the vocabulary", (*zeros[1:], heads.VOCABULARY)),
        ("d2t points below token 0", (-1, *zeros[1:])),
    ]
    none = LoadCase(head, f"no d2t, draft_vocab_size {size} of {heads.VOCABULARY}", "d2t-missing-not-noticed", removed=("d2t",))
    return [none, *(LoadCase(head, what, "d2t-not-checked", d2t=values) for what, values in made)]


def bad_d2t(cls: type[DraftNormContract]) -> Strategy:
    return st.sampled_from(bad_d2t_examples(cls))


Examples = Callable[[Any], list[LoadCase]]

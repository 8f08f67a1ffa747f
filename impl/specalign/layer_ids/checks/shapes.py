"""Concern "weights": shapes in the weight headers against the numbers of the config."""

from __future__ import annotations

from collections.abc import Iterator

from specalign.layer_ids.draft_config import DraftSpec
from specalign.layer_ids.findings import Finding, Severity, finding


def check_shapes(draft: DraftSpec) -> Iterator[Finding]:
    """The tensors of an EAGLE3 head whose shapes follow from the config: d2t, lm_head, fc and the norm before it."""
    if draft.kind != "eagle3":
        return
    small, full = draft.draft_vocab_size, draft.vocab_size
    if small is not None and full is not None and small > full:
        yield _wrong("draft_vocab_size", "a vocabulary of vocab_size tokens", f"{small} against {full}")
    for tensor, wanted, what in _wanted(draft):
        shape = draft.shape(tensor)
        if shape is not None and len(shape) == len(wanted):
            wrong = [(got, want) for got, want in zip(shape, wanted, strict=True) if want is not None and got != want]
            if wrong:
                yield _wrong(f"{tensor} {list(shape)}", what, f"{wrong[0][1]} against {wrong[0][0]}")


def _wanted(draft: DraftSpec) -> Iterator[tuple[str, tuple[int | None, ...], str]]:
    """(tensor, shape with None where the config does not fix it, what fixes it)."""
    hidden, vocab = draft.hidden_size, draft.draft_vocab_size or draft.vocab_size
    fc = draft.shape("fc.weight")
    yield "d2t", (vocab,), "the draft vocabulary (draft_vocab_size, else vocab_size)"
    yield "lm_head.weight", (vocab, hidden), "the draft vocabulary and hidden_size"
    yield "fc.weight", (hidden, None), "hidden_size"
    if fc is not None and len(fc) == 2:
        yield "input_norm.weight", (fc[1],), "the inputs of fc.weight"


def _wrong(where: str, what: str, how_much: str) -> Finding:
    return finding(
        "weight-shape",
        Severity.ERROR,
        f"{where.partition(' ')[0]} does not fit {what}",
        where=where,
        how_much=how_much,
        next="config and weights are not of one export: fetch both again, or correct the config",
    )

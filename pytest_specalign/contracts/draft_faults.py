"""Known faults on the way from the target's states into a draft head, each as the faulty code in little."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from pytest_specalign.contracts import draft_heads as heads
from pytest_specalign.contracts import draft_looks as looks
from pytest_specalign.contracts.draft_looks import Inputs, What
from pytest_specalign.contracts.known_faults import Raised


@dataclasses.dataclass(frozen=True, slots=True)
class KnownDraftFault:
    """One public fault.

    Attributes:
        name: what messages and `make faults` call it.
        references: the public reports, if there are any.
        summary: what the faulty code does, one clause.
        remedy: what to do about it, one sentence.
        of: what it makes wrong; "fc_input" stands for "combine" too.
        looks_like: the faulty value; None for faults that show otherwise than by a value.
    """

    name: str
    references: tuple[str, ...]
    summary: str
    remedy: str
    of: What | None = None
    looks_like: Callable[[Inputs], Tensor] | None = None

    def outcome(self, what: What, inputs: Inputs) -> Tensor | Raised | None:
        """What the fault makes of the inputs; None if it is a fault of something else."""
        if self.looks_like is None or self.of not in (what, "fc_input" if what == "combine" else what):
            return None
        try:
            found = self.looks_like(inputs)
            return found if what != "combine" or self.of == "combine" else found @ inputs.weights["fc.weight"].T
        except Exception as error:  # a fault may crash in any way: that is its outcome
            return Raised.of(error)

    def format(self) -> str:
        return f"{self.name} ({', '.join(self.references) or 'no public report'}): {self.summary}"


KNOWN_DRAFT_FAULTS: Final = (
    KnownDraftFault(
        "skipped-when-widths-equal",
        ("sglang PR #21272", "SGLang 0.5.23 llama_eagle3.py"),
        "states as wide as the head skip the norms before fc, because the width is taken for the question whether fc is needed",
        "Let the config decide, not the width.",
        "fc_input",
        looks.skipped_if_equal,
    ),
    KnownDraftFault(
        "fc-skipped-when-widths-equal",
        ("sglang PR #21272", "SGLang 0.5.23 llama_eagle3.py"),
        "states as wide as the head skip fc and its norms, because the width is taken for the question whether fc is needed",
        "Let the config decide, not the width.",
        "combine",
        looks.passed_through,
    ),
    KnownDraftFault(
        "nested-flag-ignored",
        ("vllm #42143", "sglang issue #32226", "speculators eagle3_converter.py"),
        "only flags at the top level are read, so the norm that `eagle_config` asks for is dropped",
        "Read each flag in `eagle_config` too.",
        "fc_input",
        looks.read_from(False),
    ),
    KnownDraftFault(
        "top-level-flag-ignored",
        (),
        "only flags in `eagle_config` are read, so the norm that the top level asks for is dropped",
        "Read each flag at the top level too.",
        "fc_input",
        looks.read_from(True),
    ),
    KnownDraftFault(
        "norm-not-applied",
        ("sglang issue #32226", "vllm #38111", "SGLang 0.5.23 kimi_k25_eagle3.py"),
        "the states go into fc without the norm that the config asks for",
        "Apply what the config asks for, or refuse the head.",
        "fc_input",
        looks.raw,
    ),
    KnownDraftFault(
        "norm-weight-unused",
        (),
        "the states are normed, and the norm's weight is loaded but not multiplied in",
        "Multiply by the weight.",
        "fc_input",
        lambda i: heads.fc_input(i.case, i.weights, i.states, weighted=False),
    ),
    KnownDraftFault(
        "norm-before-fc-per-chunk",
        (),
        "`norm_before_fc` takes one RMS for each chunk, in place of one over the whole concatenation",
        "Norm the whole concatenation at once.",
        "fc_input",
        looks.chunks_like_whole,
    ),
    KnownDraftFault(
        "fc-norm-over-the-whole",
        (),
        "`fc_norm` takes one RMS over the whole concatenation, in place of one for each chunk",
        "Norm each chunk by itself.",
        "fc_input",
        looks.whole_like_chunks,
    ),
    KnownDraftFault(
        "second-norm-dropped",
        (),
        "of two norms that the config asks for, only `input_norm` is applied",
        "Apply both, or refuse the config.",
        "fc_input",
        looks.with_norms("whole"),
    ),
    KnownDraftFault(
        "first-norm-dropped",
        (),
        "of two norms that the config asks for, only `fc_norm` is applied",
        "Apply both, or refuse the config.",
        "fc_input",
        looks.with_norms("chunk"),
    ),
    KnownDraftFault(
        "norms-swapped",
        (),
        "`fc_norm` is applied before `input_norm`",
        "Apply `input_norm` first.",
        "fc_input",
        looks.swapped,
    ),
    KnownDraftFault(
        "one-weight-for-all-chunks",
        (),
        "every chunk is multiplied by the weight of `fc_norm.0`",
        "Give each chunk its own norm.",
        "fc_input",
        looks.first_chunk_weight,
    ),
    KnownDraftFault(
        "chunks-reversed",
        ("SGLang 0.5.23 capture loops",),
        "the chunks are concatenated in the reverse order",
        "Concatenate the states in the order of the ids.",
        "fc_input",
        looks.in_reverse,
    ),
    KnownDraftFault(
        "eps-ignored",
        (),
        "a fixed eps is used in place of `rms_norm_eps`",
        "Take eps from the config.",
        "fc_input",
        looks.eps_ignored,
    ),
    KnownDraftFault(
        "width-always-three",
        ("vllm #54526", "vllm PR #54598", "speculators #1065", "SpecForge llama3_eagle.py"),
        "fc is made for three states whatever the config lists",
        "Take the number of states from the ids.",
        "fc_input",
        looks.three_only,
    ),
    KnownDraftFault(
        "null-width-crash",
        ("speculators #1065", "SGLang 0.5.23 llama_eagle3.py"),
        "`target_hidden_size: null` is taken for a width, because only the key's presence is tested",
        "Treat null as missing, and take `hidden_size`.",
        "fc_input",
        looks.null_width,
    ),
    KnownDraftFault(
        "norm-output-inverted",
        ("SpecForge #879",),
        "`norm_output` is read the wrong way round: false recycles the normed state",
        "Recycle the normed state if `norm_output` is true, else the un-normed one; logits always come from the normed one.",
        "recycled",
        looks.either("recycled", lambda flag: not flag),
    ),
    KnownDraftFault(
        "always-recycles-normed",
        ("vllm #46075", "ATOM #1742", "Rapid-MLX #3371 against vllm-mlx #660"),
        "the next draft step gets the state after the final norm, whatever the config says",
        "Recycle what the head was trained on: the un-normed state unless `norm_output` is true.",
        "recycled",
        looks.either("recycled", lambda flag: True),
    ),
    KnownDraftFault(
        "never-recycles-normed",
        ("Rapid-MLX #3371 against vllm-mlx #660",),
        "the next draft step gets the state before the final norm, whatever the config says",
        "Recycle what the head was trained on: the normed state if `norm_output` is true.",
        "recycled",
        looks.either("recycled", lambda flag: False),
    ),
    KnownDraftFault(
        "logits-without-norm",
        ("SpecForge #879",),
        "logits are made of the stream before the final norm",
        "Norm before the lm_head, whatever `norm_output` says.",
        "logits",
        looks.either("logits", lambda flag: False),
    ),
    KnownDraftFault(
        "norm-before-residual-ignored",
        ("SGLang 0.5.23 llama_eagle3.py",),
        "the first layer adds the un-normed state although `norm_before_residual` is true",
        "With `norm_before_residual`, the residual is hidden_norm(state).",
        "residual",
        looks.either("residual", lambda flag: False),
    ),
    KnownDraftFault(
        "always-norms-before-residual",
        (),
        "the first layer adds the normed state although `norm_before_residual` is false",
        "Without `norm_before_residual`, the residual is the state as it came.",
        "residual",
        looks.either("residual", lambda flag: True),
    ),
    KnownDraftFault(
        "d2t-ignored",
        ("vllm PR #18909",),
        "draft tokens are taken for target tokens, because d2t was lost on loading",
        "Map every draft token: target token = draft token + d2t[draft token].",
        "tokens",
        lambda i: i.states[1],
    ),
    KnownDraftFault(
        "d2t-taken-for-ids",
        (),
        "d2t[token] is taken for the target token, but it holds the offset",
        "Map every draft token: target token = draft token + d2t[draft token].",
        "tokens",
        lambda i: i.states[0][i.states[1]],
    ),
    KnownDraftFault(
        "offsets-added-twice",
        (),
        "arange is added to d2t once on loading and the token again on mapping",
        "Add the token to its offset once.",
        "tokens",
        lambda i: i.states[0][i.states[1]] + 2 * i.states[1],
    ),
)


def gap(got: Tensor, right: Tensor) -> float:
    """The largest absolute difference over the larger of 1 and the largest right value; infinite where one is no number."""
    if got.shape != right.shape:
        return float("inf")
    if not right.numel():
        return 0.0
    difference = (got.detach().to("cpu", torch.float64) - right.double()).abs()
    return float(torch.nan_to_num(difference, nan=float("inf")).max() / max(1.0, float(right.abs().max())))


def diagnose_draft(
    what: What, inputs: Inputs, got: Tensor | Raised, right: Tensor, *, tolerance: float
) -> tuple[KnownDraftFault, ...]:
    """The known faults that give `got` and not what is right. Ties are settled by the caller, with more calls."""
    made = [(fault, fault.outcome(what, inputs)) for fault in KNOWN_DRAFT_FAULTS]
    return tuple(
        f for f, faulty in made if faulty is not None and _fits(faulty, got, tolerance) and not _fits(faulty, right, tolerance)
    )


def agrees(fault: KnownDraftFault, what: What, inputs: Inputs, got: Tensor | Raised, *, tolerance: float) -> bool:
    """Whether code with the fault may have given `got`, right or wrong."""
    faulty = fault.outcome(what, inputs)
    return faulty is not None and _fits(faulty, got, tolerance)


def _fits(faulty: Tensor | Raised, got: Tensor | Raised, tolerance: float) -> bool:
    if isinstance(faulty, Raised) or isinstance(got, Raised):
        return isinstance(faulty, Raised) and isinstance(got, Raised) and got.kind is faulty.kind
    return gap(got, faulty) <= tolerance


LOAD_FAULTS: Final = {
    fault.name: fault
    for fault in (
        KnownDraftFault(
            "lm_head-missing-not-noticed",
            ("sglang PR #27908", "sglang issue #27829"),
            "the config states a draft vocabulary, the file has no lm_head, and the head runs with a random one",
            "Raise, or take the target's lm_head only where the config says so.",
        ),
        KnownDraftFault(
            "d2t-missing-not-noticed",
            ("Automodel #2447",),
            "the draft vocabulary is smaller than the target's and the file has no d2t, so which tokens it holds is unknown",
            "Raise.",
        ),
        KnownDraftFault(
            "d2t-not-checked",
            (),
            "d2t is taken as it is, although it points outside of the target's vocabulary or has another length",
            "Check d2t against both vocabularies.",
        ),
        KnownDraftFault(
            "missing-tensors-not-noticed",
            ("SGLang 0.5.23 llama_eagle3.py",),
            "a parameter that the file does not fill keeps its initial value",
            "Compare the names that were filled with those of the parameters, and raise with the difference.",
        ),
        KnownDraftFault(
            "unknown-tensors-dropped",
            ("SGLang 0.5.23 llama_eagle3.py", "speculators eagle3_converter.py"),
            "a tensor that no parameter takes is dropped without a word",
            "Raise with the names that nothing took; map legacy names as whole segments.",
        ),
        KnownDraftFault(
            "norm-weight-left-over",
            ("vllm #38111", "SGLang 0.5.23 kimi_k25_eagle3.py"),
            "the file holds the weight of a norm, no flag was found that asks for it, and it is dropped",
            "Raise: the flag stands where this code does not look.",
        ),
        KnownDraftFault(
            "both-norms-applied",
            ("SGLang 0.5.23 llama_eagle3.py",),
            "a config that asks for both norms gets both, where they are declared to exclude each other (speculators)",
            "Refuse the config, or declare both = 'apply'.",
        ),
        KnownDraftFault(
            "inputs-changed",
            (),
            "the states, the weights or the config are changed",
            "Work on copies.",
        ),
    )
}
"""Faults that show in what is accepted or left behind, not in a value."""

"""Public faults of draft heads as small broken implementations. Row numbers and letters are those of the fault list."""

from __future__ import annotations

from typing import Any

from pytest_specalign.contracts.draft_norm import DraftNormContract
from tests.faults import draft_broken as broken
from tests.faults import draft_right as right
from tests.faults.mutant import Mutant

_NONE, _WHOLE = "test_without_norms_the_states_are_concatenated", "test_norm_before_fc_is_over_the_whole"
_CHUNK, _BOTH = "test_fc_norm_is_per_chunk", "test_both_norms_as_declared"
_PLACES, _EQUAL = "test_flags_are_read_wherever_they_stand", "test_equal_widths_skip_nothing"
_OUTPUTS = "test_logits_are_normed_and_the_flag_says_what_is_recycled"
_TOKENS, _D2T, _UNKNOWN = "test_tokens_map_by_offsets", "test_refuses_a_bad_d2t", "test_refuses_unknown_tensors"

METHODS = ("fc_input", "combine", "outputs", "first_residual", "map_tokens", "load")
RIGHT = {name: getattr(right, name) for name in METHODS}


def _head(
    row: str, what: str, reference: str, diagnosis: str, killed_by: str, *, declares: dict[str, Any] | None = None, **faulty: Any
) -> Mutant:
    correct = {name: RIGHT[name] for name in faulty}
    if declares:
        correct = {"fc_input": right.fc_input_of_one_norm}
    return Mutant(row, what, reference, DraftNormContract, declares or {}, correct, faulty, diagnosis, killed_by)


_RESIDUAL = "test_the_first_residual_follows_the_flag"
_EXCLUSIVE = {"both": "refuse"}

DRAFT_MUTANTS = (
    _head(
        "1", "norm_before_fc never applied", "sglang issue #32226", "norm-not-applied", _WHOLE, fc_input=broken.norm_not_applied
    ),
    _head(
        "1b", "the nested flag is not read", "sglang issue #32226", "nested-flag-ignored", _PLACES, fc_input=broken.top_level_only
    ),
    _head("21", "the nested flag is not read", "vllm #42143", "nested-flag-ignored", _PLACES, fc_input=broken.top_level_only),
    _head("21b", "the top-level flag is not read", "vllm #38111", "top-level-flag-ignored", _PLACES, fc_input=broken.nested_only),
    _head(
        "d",
        "kimi knows no norm_before_fc",
        "SGLang 0.5.23, no report",
        "norm-not-applied",
        _CHUNK,
        fc_input=broken.norm_not_applied,
    ),
    _head(
        "9",
        "equal widths skip the norms",
        "sglang PR #21272",
        "skipped-when-widths-equal",
        _EQUAL,
        fc_input=broken.norms_only_if_wider,
    ),
    _head(
        "9b", "equal widths skip fc", "sglang PR #21272", "fc-skipped-when-widths-equal", _EQUAL, combine=broken.fc_only_if_wider
    ),
    _head(
        "10",
        "no lm_head in the file",
        "sglang PR #27908, issue #27829",
        "lm_head-missing-not-noticed",
        "test_refuses_a_missing_lm_head",
        load=broken.accepting(missing=("lm_head",)),
    ),
    _head(
        "19", "fc for three states", "vllm #54526, speculators #1065", "width-always-three", _NONE, fc_input=broken.three_states
    ),
    _head("24", "d2t lost on loading", "vllm PR #18909", "d2t-ignored", _TOKENS, map_tokens=broken.unmapped),
    _head("24b", "d2t holds offsets, not ids", "no report", "d2t-taken-for-ids", _TOKENS, map_tokens=broken.looked_up),
    _head("24c", "arange added twice", "no report", "offsets-added-twice", _TOKENS, map_tokens=broken.twice),
    _head(
        "26", "no d2t in the file", "Automodel #2447", "d2t-missing-not-noticed", _D2T, load=broken.accepting(missing=("d2t",))
    ),
    _head("26b", "d2t never checked", "no report", "d2t-not-checked", _D2T, load=broken.d2t_as_it_is),
    _head(
        "32",
        "norm_output the wrong way round",
        "SpecForge #879",
        "norm-output-inverted",
        _OUTPUTS,
        outputs=broken.norm_output_inverted,
    ),
    _head(
        "32b",
        "logits of the un-normed stream",
        "SpecForge #879",
        "logits-without-norm",
        _OUTPUTS,
        outputs=broken.logits_follow_the_flag,
    ),
    _head(
        "38",
        "the chain always gets the normed state",
        "vllm #46075, ATOM #1742",
        "always-recycles-normed",
        _OUTPUTS,
        outputs=broken.always_normed,
    ),
    _head(
        "38b",
        "the chain never gets it",
        "Rapid-MLX #3371 against vllm-mlx #660",
        "never-recycles-normed",
        _OUTPUTS,
        outputs=broken.never_normed,
    ),
    _head(
        "b",
        "norm_before_residual not read",
        "SGLang 0.5.23, no report",
        "norm-before-residual-ignored",
        _RESIDUAL,
        first_residual=broken.plain_residual,
    ),
    _head("b2", "always on", "no report", "always-norms-before-residual", _RESIDUAL, first_residual=broken.normed_residual),
    _head(
        "e",
        "target_hidden_size: null",
        "SGLang 0.5.23, no report",
        "null-width-crash",
        "test_a_null_target_width_is_the_heads_own",
        fc_input=broken.width_by_presence,
    ),
    _head(
        "j",
        "both norms, declared exclusive",
        "SGLang 0.5.23, no report",
        "both-norms-applied",
        _BOTH,
        declares=_EXCLUSIVE,
        fc_input=right.fc_input,
    ),
    _head("f", "chunks in the wrong order", "SGLang 0.5.23, no report", "chunks-reversed", _NONE, fc_input=broken.backwards),
    _head("weight", "the norm's weight is never used", "no report", "norm-weight-unused", _WHOLE, fc_input=broken.weight_unused),
    _head("whole", "norm_before_fc per chunk", "no report", "norm-before-fc-per-chunk", _WHOLE, fc_input=broken.whole_per_chunk),
    _head("chunk", "fc_norm over the whole", "no report", "fc-norm-over-the-whole", _CHUNK, fc_input=broken.chunks_as_whole),
    _head(
        "second",
        "fc_norm dropped beside input_norm",
        "no report",
        "second-norm-dropped",
        _BOTH,
        fc_input=broken.without("fc_norm"),
    ),
    _head(
        "first",
        "input_norm dropped beside fc_norm",
        "no report",
        "first-norm-dropped",
        _BOTH,
        fc_input=broken.without("norm_before_fc"),
    ),
    _head("swap", "fc_norm before input_norm", "no report", "norms-swapped", _BOTH, fc_input=broken.swapped),
    _head("one", "one fc_norm weight for all", "no report", "one-weight-for-all-chunks", _CHUNK, fc_input=broken.one_weight),
    _head("eps", "eps fixed", "no report", "eps-ignored", "test_eps_is_the_configs", fc_input=broken.fixed_eps),
    _head(
        "names",
        "legacy names by substring",
        "SGLang 0.5.23, no report",
        "unknown-tensors-dropped",
        _UNKNOWN,
        load=broken.by_substring,
    ),
    _head(
        "k",
        "weights that nothing takes",
        "SGLang 0.5.23, no report",
        "unknown-tensors-dropped",
        _UNKNOWN,
        load=broken.accepting(left_over=("*",)),
    ),
    _head(
        "random",
        "a weight that stays random",
        "SGLang 0.5.23, no report",
        "missing-tensors-not-noticed",
        "test_refuses_missing_tensors",
        load=broken.accepting(missing=("norm", "fc", "proj")),
    ),
    _head(
        "left",
        "a norm that no flag asks for",
        "vllm #38111",
        "norm-weight-left-over",
        "test_refuses_a_norm_that_no_flag_asks_for",
        load=broken.accepting(left_over=("input_norm",)),
    ),
    _head(
        "writes",
        "states changed in place",
        "no report",
        "inputs-changed",
        "test_leaves_its_inputs_alone",
        fc_input=broken.in_place,
    ),
)

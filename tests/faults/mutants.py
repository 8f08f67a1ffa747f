"""Public faults of layer-id code as small broken implementations.

Each row stands for one public report, or for a fault that was found by reading an engine and that has none. Row numbers and
letters are those of the fault list this project keeps. Row 23, ids lost on earlier pipeline stages, is a fault of capturing and
not of converting ids: it is covered where pipeline stages are.
"""

from __future__ import annotations

from specalign.layer_ids import RULES
from tests.faults import broken, right
from tests.faults.input_mutants import INPUT_MUTANTS
from tests.faults.mutant import Mutant, converts, dflash_path, reads

__all__ = ["MUTANTS", "Mutant"]

_NO_DEFAULT = RULES["output"].narrowed(refuse_default=True)
_DEFAULT, _BAD = "test_none_is_the_explicit_default", "test_refuses_bad_ids"
_EACH, _NONE, _NULL = "test_reads_each_source", "test_missing_ids_are_none", "test_null_ids_are_none"
_WIDTH = "test_width_agrees_with_the_ids"

MUTANTS = (
    converts(
        "1",
        "boundaries [24,30,36] served as [25,31]: 5760 wide, 8640 expected",
        "sglang issue #32226, PR #32334",
        "as_is_if_max_is_n",
        right.gpt_oss,
        broken.plus_one_and_drop,
        "one-added-and-the-rest-dropped",
    ),
    converts(
        "2",
        "1 added to Kimi's [2,30,58]",
        "sglang PR #25454",
        "plus_one_if_first_is_1",
        right.deepseek,
        broken.plus_one,
        "one-always-added",
    ),
    converts(
        "3",
        "None and [2,n//2,n-3] give different states",
        "sglang PR #23569",
        "boundary",
        right.boundary,
        broken.plus_one,
        "one-always-added",
        _DEFAULT,
    ),
    converts(
        "4",
        "DFlash [3,11,19,27,31] on 32 layers flags block 32",
        "sglang #32204, PR #32206",
        _NO_DEFAULT,
        right.dflash,
        broken.flag_every_block,
        "index-error-at-n",
    ),
    converts(
        "6",
        "graph captured before the ids are set",
        "sglang PR #22836",
        "output",
        right.output,
        broken.set_after_graph_capture,
        "ids-ignored",
    ),
    reads(
        "8",
        "a config without eagle_config raises",
        "sglang PR #21274",
        broken.nested_indexed,
        "crash-without-the-parent-key",
        _NONE,
    ),
    converts(
        "15",
        "MiniMax-M2.5's block outputs used as boundaries",
        "vllm PR #43671",
        "output",
        right.output,
        broken.as_it_is,
        "ids-taken-as-is",
    ),
    dflash_path(
        "16", "DFlash ids used as they are", "vllm #40727, #42704, issue #42505", broken.dflash_as_it_is, "ids-taken-as-is"
    ),
    dflash_path("16b", "DFlash ids moved by two", "vllm issue #42505", broken.dflash_plus_two, "two-added"),
    converts(
        "17",
        "id n gives N-1 states on deepseek_v2",
        "vllm #46973",
        "boundary",
        right.boundary,
        broken.stop_before_n,
        "boundary-n-dropped",
    ),
    reads(
        "19",
        "fc made for 3 states, 4 ids at the top level",
        "vllm #54526, PR #54598",
        broken.width_from_nested,
        "width-ignores-top-level-ids",
        _WIDTH,
    ),
    reads("20", "missing ids become a default unasked", "vllm #50170", broken.or_default, "missing-becomes-a-default", _NONE),
    reads("28", "nested ids not read", "llama.cpp #27040", broken.top_level_only, "nested-ids-ignored", _EACH),
    converts(
        "29",
        "DFlash taps one block early",
        "onnxruntime-genai #2538",
        _NO_DEFAULT,
        right.dflash,
        broken.dflash_as_it_is,
        "ids-taken-as-is",
    ),
    converts(
        "31",
        "the last state handed on after the final norm",
        "verl-SpeCo #20",
        "boundary",
        right.boundary,
        broken.last_is_normed,
        "post-norm-for-boundary-n",
    ),
    converts(
        "31b",
        "-1 taken for the last state",
        "verl-SpeCo PR #21, Automodel #3083",
        "boundary",
        right.boundary,
        broken.from_the_end,
        "negative-counts-from-the-end",
        _BAD,
    ),
    converts(
        "37", "all 37 states in place of 3", "EAGLE #294", "boundary", right.boundary, broken.every_state, "every-state-returned"
    ),
    converts("40", "hard-coded ids", "tokenspeed #526", "as_is_if_max_is_n", right.gpt_oss, broken.hard_coded, "ids-ignored"),
    converts(
        "40b",
        "[24,30,36] served as [25,31,36]",
        "tokenspeed #526",
        "as_is_if_max_is_n",
        right.gpt_oss,
        broken.plus_one_capped,
        "one-added-but-capped-at-n",
    ),
    reads("40c", "ids not read from the config at all", "tokenspeed #526", broken.constant, "hard-coded-ids", _EACH),
    reads("a", "top-level ids not used", "SGLang 0.5.23, no report", broken.nested_only, "top-level-ids-ignored", _EACH),
    reads(
        "a2",
        "capture and width read different places",
        "SGLang 0.5.23, no report",
        broken.top_level_first,
        "precedence-turned-round",
        "test_keeps_the_precedence",
    ),
    converts(
        "f",
        "unsorted ids re-ordered",
        "SGLang 0.5.23, no report",
        "boundary",
        right.boundary,
        broken.in_layer_order,
        "sorted-by-layer",
        "test_keeps_the_declared_order",
    ),
    converts(
        "f2",
        "duplicates collapse",
        "SGLang 0.5.23, no report",
        "boundary",
        right.boundary,
        broken.flags_have_no_count,
        "duplicates-collapsed",
        "test_treats_duplicates_as_declared",
    ),
    converts(
        "g",
        "[2,18,33] moved on gpt_oss",
        "SGLang 0.5.23, no report",
        "boundary",
        right.boundary,
        right.gpt_oss,
        "shift-decided-by-max",
    ),
    converts(
        "g2",
        "[7,23,51,67,83] not moved on deepseek",
        "SGLang 0.5.23, no report",
        "output",
        right.output,
        right.deepseek,
        "shift-decided-by-the-first-id",
    ),
    converts(
        "h",
        "the default moved by one",
        "SGLang 0.5.23, no report",
        "output",
        right.output,
        broken.default_plus_one,
        "default-shifted-too",
        _DEFAULT,
    ),
    converts(
        "i",
        "dense llama never reaches boundary n",
        "SGLang 0.5.23, no report",
        RULES["output"].narrowed(reaches_n=False),
        right.output_up_to_n_minus_1,
        broken.output_but_stop_before_n,
        "boundary-n-dropped",
        "test_reaches_the_last_boundary_as_declared",
    ),
    reads(
        "k",
        "the converter drops the source's nested ids",
        "speculators, no report",
        broken.top_level_only,
        "nested-ids-ignored",
        _EACH,
    ),
    converts(
        "l",
        "hidden states dumped one block early",
        "ModelOpt, no report",
        "output",
        right.output,
        broken.as_it_is,
        "ids-taken-as-is",
    ),
    converts(
        "shallow",
        "the default on a target of 4 layers",
        "ModelOpt, no report",
        "boundary",
        right.boundary,
        broken.any_depth,
        "default-on-a-shallow-target",
        "test_refuses_the_default_on_shallow_targets",
    ),
    converts(
        "bounds",
        "no check of the ids",
        "SGLang 0.5.23, no report",
        "output",
        right.output,
        broken.no_check_at_all,
        "ids-not-checked",
        _BAD,
    ),
    reads("null", "null ids crash", "config of Mistral3_speculator_dummy", broken.key_present, "null-not-read-as-missing", _NULL),
    reads("pop", "reading empties the config", "no report", broken.popped, "config-changed", "test_leaves_the_config_alone"),
    reads("three", "fc always made for 3 states", "SpecForge, no report", broken.width_of_three, "width-always-three", _WIDTH),
    *INPUT_MUTANTS,
)

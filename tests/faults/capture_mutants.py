"""Public faults of capturing as small broken implementations. Row numbers and letters are those of the fault list."""

from __future__ import annotations

from typing import Any, Final

from pytest_specalign.contracts.capture import CaptureContract
from tests.faults import capture_broken as broken
from tests.faults.capture_right import Engine, KeepsDuplicates, LayerOrderEngine
from tests.faults.mutant import Mutant

_ASKED, _LAST, _ORDER = (
    "test_captures_what_was_asked",
    "test_reaches_the_last_boundary_as_declared",
    "test_keeps_the_declared_order",
)
_STAGES, _RANKS = "test_pipeline_stages_lose_nothing", "test_every_rank_has_whole_states"
_POST_NORM, _MISSING = "test_post_norm_is_the_normed_state", "test_refuses_states_that_do_not_exist"
_TWICE, _IN_PLACE = "test_treats_duplicates_as_declared", "test_later_in_place_adds_change_nothing"

METHODS: Final = ("capture", "capture_stages", "capture_ranks")
_RIGHT: Final = {kind: {name: getattr(kind(), name) for name in METHODS} for kind in (Engine, KeepsDuplicates, LayerOrderEngine)}
EVERYTHING: Final = {"post_norm": True, "rank_kinds": ("partial", "scattered")}
AS_DENSE_MODELS: Final = {"order": "layer", "duplicates": "collapse", "reaches_n": False}


def _captures(
    row: str, what: str, reference: str, engine: type[Engine], diagnosis: str, killed_by: str = _ASKED, **declares: Any
) -> Mutant:
    made = engine()
    methods = {name: getattr(made, name) for name in METHODS}
    kept = KeepsDuplicates if declares.get("duplicates") == "keep" else Engine
    right = _RIGHT[LayerOrderEngine if declares == AS_DENSE_MODELS else kept]
    return Mutant(row, what, reference, CaptureContract, declares or EVERYTHING, right, methods, diagnosis, killed_by)


CAPTURE_MUTANTS = (
    _captures(
        "1",
        "boundaries taken one late, and what lies past the last block dropped: 5760 wide, 8640 expected",
        "sglang issue #32226, PR #32334",
        broken.OneLateAndTheRestDropped,
        "one-late-and-the-rest-dropped",
        _LAST,
    ),
    _captures("2", "one block late", "sglang PR #25454", broken.OneLate, "one-block-late"),
    _captures("15", "one block early", "vllm PR #43671", broken.OneEarly, "one-block-early"),
    _captures(
        "4", "boundary n flagged on the list of blocks", "sglang #32204", broken.FlagOnEveryBlock, "index-error-at-n", _LAST
    ),
    _captures("6", "states set after the graph", "sglang PR #22836", broken.GraphBeforeStates, "states-ignored"),
    _captures("40", "states hard-coded", "tokenspeed #526", broken.GraphBeforeStates, "states-ignored", _LAST),
    _captures(
        "11",
        "POST_NORM asked for, boundary n given",
        "sglang PR #39776",
        broken.UnNormedForPostNorm,
        "boundary-n-for-post-norm",
        _POST_NORM,
    ),
    _captures(
        "38",
        "MTP chain fed with the un-normed state",
        "vllm #46075",
        broken.UnNormedForPostNorm,
        "boundary-n-for-post-norm",
        _POST_NORM,
    ),
    _captures("12", "the blocks swallow the list", "sglang #38589, PR #38642", broken.SwallowedCollector, "nothing-captured"),
    _captures("17", "boundary n never appended", "vllm #46973, #46788", broken.NoLastBoundary, "boundary-n-dropped", _LAST),
    _captures(
        "i",
        "declared out of reach, dropped in place of refused",
        "SGLang 0.5.23, no report",
        broken.DeclaredButDropped,
        "boundary-n-dropped",
        _LAST,
        **AS_DENSE_MODELS,
    ),
    _captures("23", "the last stage alone captures", "vllm #36731, #50514", broken.LastStageOnly, "earlier-stages-lost", _STAGES),
    _captures(
        "23b",
        "the last stage alone captures, its input included",
        "vllm #36731",
        broken.LastStageAndItsEdge,
        "earlier-stages-lost",
        _STAGES,
    ),
    _captures("23c", "each stage counts from 0", "vllm #36151", broken.LocalNumbers, "local-layer-numbers", _STAGES),
    _captures("23d", "a stage edge captured twice", "vllm #53901 review", broken.EdgeTwice, "stage-edge-captured-twice", _STAGES),
    _captures("23e", "a stage edge lost", "SGLang 0.5.23, no report", broken.EdgeLost, "stage-edge-lost", _STAGES),
    _captures("31", "boundary n normed", "verl-SpeCo #20, Automodel #3082", broken.NormedLast, "post-norm-for-boundary-n", _LAST),
    _captures("31b", "-1 counts from the end", "Automodel #3083", broken.FromTheEnd, "negative-counts-from-the-end", _MISSING),
    _captures("37", "all n+1 states", "EAGLE #294", broken.EveryState, "every-state-returned"),
    _captures("37b", "all of output_hidden_states", "EAGLE #294", broken.EveryHfState, "every-state-returned"),
    _captures(
        "40b",
        "rows scattered over the ranks",
        "tokenspeed #419",
        broken.Unreduced,
        "rows-not-gathered",
        _RANKS,
        rank_kinds=("scattered",),
    ),
    _captures("f", "order follows the blocks", "SGLang 0.5.23, no report", broken.SortedByLayer, "sorted-by-layer", _ORDER),
    _captures("f2", "a doubled state comes once", "SGLang 0.5.23, no report", broken.Collapsed, "duplicates-collapsed", _TWICE),
    _captures(
        "f3",
        "both at once",
        "SGLang 0.5.23, no report",
        broken.SortedAndCollapsed,
        "sorted-and-collapsed",
        _TWICE,
        duplicates="keep",
    ),
    _captures("alias", "the stream itself is kept", "SGLang 0.5.23 guards against it", broken.Aliased, "alias", _IN_PLACE),
    _captures("residual", "residual not added", "no report", broken.NoResidual, "residual-dropped"),
    _captures("residual2", "hidden not added", "no report", broken.OnlyResidual, "residual-alone"),
    _captures("partial", "all-reduce still owed", "SGLang 0.5.23 guards against it", broken.Unreduced, "partial-sum", _RANKS),
    _captures(
        "count", "unknown states left out", "SGLang 0.5.23, no report", broken.Unchecked, "missing-states-dropped", _MISSING
    ),
    _captures(
        "buffer",
        "one buffer for every batch",
        "no report",
        broken.OneBuffer,
        "buffer-reused",
        "test_the_next_call_changes_nothing",
    ),
    _captures("hooks", "hooks stay", "no report", broken.HooksLeft, "hooks-left-behind", "test_leaves_the_model_alone"),
    _captures(
        "hooks2",
        "hooks stay after an exception",
        "no report",
        broken.NoFinally,
        "hooks-left-behind",
        "test_cleans_up_after_an_exception",
    ),
    _captures(
        "swallow",
        "an exception is lost",
        "sglang PR #21274",
        broken.Swallowed,
        "exception-swallowed",
        "test_cleans_up_after_an_exception",
    ),
    _captures(
        "writes", "weights written to", "no report", broken.WritesToTheModel, "model-changed", "test_leaves_the_model_alone"
    ),
)

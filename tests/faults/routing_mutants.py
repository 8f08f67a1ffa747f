"""Faults of routing as small broken implementations, each with the name that the contract must give it."""

from __future__ import annotations

from typing import Any

from pytest_specalign.contracts.routing import RoutingContract
from tests.faults import routing_broken as broken
from tests.faults import routing_right as right
from tests.faults.mutant import Mutant

_SCATTER = "test_scatter_puts_rows_where_their_positions_say"
_PADDING = "test_padding_rows_are_zeros"
_SCATTER_BACKWARD = "test_the_scatters_gradient_is_rounded_after_every_slot"
_GATHER = "test_the_gather_sums_in_slot_order_by_fma"
_GATHER_BACKWARD = "test_the_gathers_gradients_are_products_and_dots"
_TOPK, _LAYOUT = "test_topk_decides_ties_and_slots", "test_the_layout_is_stable_and_aligned"
_REPLAY = "test_replay_hands_out_each_microbatchs_ids"


def _routes(what: str, diagnosis: str, killed_by: str, declares: dict[str, Any] | None = None, **faulty: Any) -> Mutant:
    declared = declares or {}
    names = {"topk": "engine_topk"} if declared.get("topk_order") == "engine" else {}
    correct = {name: getattr(right, names.get(name, name)) for name in faulty}
    reference = "verl #7340, #7805" if diagnosis == "orphaned-replay" else "no report"
    return Mutant("routing", what, reference, RoutingContract, declared, correct, faulty, diagnosis, killed_by)


ROUTING_MUTANTS = (
    _routes("atomics: another order in every run", "runs-differ", "test_runs_agree", gather=broken.atomics()),
    _routes("scatter-add over expert-major rows", "row-order-in-place-of-slot-order", _GATHER, gather=broken.scatter_add),
    _routes("the first slot comes last", "permuted-order", _GATHER, gather=broken.rotated),
    _routes("the last slot comes first", "reverse-slot-order", _GATHER, gather=broken.backwards),
    _routes("slots sorted by weight", "sorted-by-weight", _GATHER, gather=broken.by_weight),
    _routes(
        "scatter-add in the backward",
        "row-order-in-place-of-slot-order",
        _SCATTER_BACKWARD,
        scatter_backward=broken.scatter_add_backward,
    ),
    _routes("one rounding at the end", "one-rounding-at-the-end", _SCATTER_BACKWARD, scatter_backward=broken.one_rounding),
    _routes("-0 stays -0", "minus-zero-kept", _SCATTER_BACKWARD, scatter_backward=broken.first_as_it_is),
    _routes("multiply, then add", "multiply-then-add", _GATHER, gather=broken.multiply_then_add),
    _routes("summed in float64", "float64-sum", _GATHER, gather=broken.float64),
    _routes("rounded after every slot", "rounded-every-slot", _GATHER, gather=broken.rounded_each_time),
    _routes("weight before the sum, not in it", "weight-before-the-sum", _GATHER, gather=broken.weight_before),
    _routes("weights in bf16", "weights-rounded", _GATHER, gather=broken.narrow_weights),
    _routes("empty slots add +0", "empty-slots-add-zero", _GATHER, gather=broken.zeros_added),
    _routes(
        "offsets overflow",
        "int32-overflow",
        "test_offsets_go_beyond_int32",
        {"large_elements": 2**15},
        gather=broken.short_offsets,
    ),
    _routes(
        "duplicate destination, last writer wins",
        "duplicate-destination",
        "test_duplicate_destinations_are_refused",
        {"checks": ("duplicates",)},
        scatter=broken.unchecked_scatter,
    ),
    _routes(
        "a row past the end",
        "index-not-checked",
        "test_positions_out_of_range_are_refused",
        {"checks": ("range",)},
        scatter=broken.unchecked_scatter,
    ),
    _routes("padding rows not zeroed", "padding-not-zeroed", _PADDING, scatter=broken.padding_left),
    _routes("rows token by token", "positions-ignored", _SCATTER, scatter=broken.token_by_token),
    _routes("rows changed in place", "inputs-changed", "test_leaves_its_inputs_alone", scatter=broken.rows_doubled_in_place),
    _routes(
        "padding rows of the gradient not zeroed",
        "padding-gradient-not-zeroed",
        _PADDING,
        gather_backward=broken.gradient_padding_left,
    ),
    _routes("gradient without weight", "gradient-not-weighted", _GATHER_BACKWARD, gather_backward=broken.gradient_unweighted),
    _routes("gradient by bf16 weights", "gradient-weights-rounded", _GATHER_BACKWARD, gather_backward=broken.gradient_narrow),
    _routes("dot of bf16 products", "dot-of-rounded-products", _GATHER_BACKWARD, gather_backward=broken.narrow_dots),
    _routes("dot by torch.sum", "dot-by-torch-sum", _GATHER_BACKWARD, gather_backward=broken.torch_dots),
    _routes(
        "sorted instead of engine order",
        "sorted-in-place-of-engine-order",
        _TOPK,
        {"topk_order": "engine"},
        topk=right.topk,
    ),
    _routes("engine instead of sorted order", "engine-in-place-of-sorted-order", _TOPK, topk=right.engine_topk),
    _routes("ties to the highest index", "ties-to-the-highest-index", _TOPK, topk=broken.highest_wins),
    _routes("-0 below +0", "minus-zero-below-plus-zero", _TOPK, topk=broken.by_bits),
    _routes("scores by magnitude", "signs-ignored", _TOPK, topk=broken.by_magnitude),
    _routes("NaN ranked", "nan-ranked", "test_nan_scores_are_refused", {"checks": ("nan",)}, topk=broken.nan_ranked),
    _routes("a sort that is not stable", "sort-not-stable", _LAYOUT, layout=broken.unstable),
    _routes("routes slot by slot", "slot-major-routes", _LAYOUT, layout=broken.slot_by_slot),
    _routes("-1 counts from the end", "empty-slots-wrapped", _LAYOUT, layout=broken.wrapped),
    _routes("no padding", "alignment-ignored", _LAYOUT, layout=broken.unaligned),
    _routes("cursor off by one", "cursor-off-by-one", _REPLAY, replay=broken.shifted_replay),
    _routes("one cursor for both", "one-cursor-for-both", _REPLAY, replay=broken.one_cursor),
    _routes("one target, overwritten", "last-microbatch-for-all", _REPLAY, replay=broken.overwritten),
    _routes("the newest forward recomputed", "newest-forward-recomputed", _REPLAY, replay=broken.newest_first),
    _routes("orphaned replay", "orphaned-replay", "test_ids_left_over_are_refused", replay=broken.left_over),
    _routes(
        "live where no ids are left", "replay-exhausted", "test_a_call_without_ids_is_refused", replay=broken.live_when_exhausted
    ),
)

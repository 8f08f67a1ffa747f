"""Known faults of routing kernels, each as the faulty code in little, and what a wrong result looks like among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import torch

from pytest_specalign.contracts import routing_looks as looks
from pytest_specalign.contracts.known_faults import Raised
from pytest_specalign.contracts.routing_cases import Inputs
from pytest_specalign.contracts.routing_hooks import Output, What, same_bits
from pytest_specalign.contracts.routing_replays import REPLAY_FAULTS

Fits: TypeAlias = Callable[[Inputs, Output, Output], bool]
"""(inputs, what came, what is right): whether this fault can have given it."""


@dataclasses.dataclass(frozen=True, slots=True)
class KnownRoutingFault:
    """One fault.

    Attributes:
        name: what messages and `make faults` call it.
        references: the public reports, if there are any.
        summary: what the faulty code does, one clause.
        remedy: what to do about it, one sentence.
        of: the hook that it makes wrong; None for faults that show otherwise than by a value.
        gives: the faulty value.
        fits: for faults with no one value.
    """

    name: str
    references: tuple[str, ...]
    summary: str
    remedy: str
    of: What | None = None
    gives: Callable[[Inputs], Output] | None = None
    fits: Fits | None = None

    def consistent(self, inputs: Inputs, got: Output | Raised, right: Output) -> bool:
        """Whether code with this fault can have given this."""
        if isinstance(got, Raised):
            return False
        try:
            if self.fits is not None:
                return self.fits(inputs, got, right)
            return self.gives is not None and same_bits(self.gives(inputs), got)
        except Exception:  # what cannot even be computed here explains nothing
            return False

    def format(self) -> str:
        return f"{self.name} ({', '.join(self.references) or 'no public report'}): {self.summary}"


_IN_ORDER: Final = "Let one program write each element and add its slots 0, 1, 2, … in a loop; no atomics."

KNOWN_ROUTING_FAULTS: Final = (
    KnownRoutingFault(
        "padding-not-zeroed",
        (),
        "rows that no route goes to keep whatever the memory held",
        "Write zeros to the padding rows, and to no others.",
        "scatter",
        fits=looks.padding_left(0),
    ),
    KnownRoutingFault(
        "positions-ignored",
        (),
        "rows stand token by token, not where their positions say",
        "Write the row of (token, slot) to positions[token, slot].",
        "scatter",
        looks.rows_in_route_order,
    ),
    KnownRoutingFault(
        "one-rounding-at-the-end",
        (),
        "the gradient is summed in FP32 and rounded once, where a loop in the rows' dtype rounds after every slot",
        "Round the sum to the rows' dtype after every slot.",
        "scatter_backward",
        looks.rounded_at_the_end,
    ),
    KnownRoutingFault(
        "minus-zero-kept",
        (),
        "the sum begins with the first row in place of +0, so a -0 stays",
        "Begin with +0 and add every slot, +0 for an empty one.",
        "scatter_backward",
        looks.begun_with_the_first,
    ),
    *(
        KnownRoutingFault(name, references, summary, _IN_ORDER, what, gives=gives, fits=fits)
        for what in ("gather", "scatter_backward")
        for name, references, summary, gives, fits in (
            (
                "row-order-in-place-of-slot-order",
                (),
                "slots are summed in the order of their expert-major rows, as a scatter-add over those rows does",
                looks.ordered(what, looks.row_order),
                None,
            ),
            (
                "reverse-slot-order",
                (),
                "slots are summed from the last to the first",
                looks.ordered(what, looks.reverse_order),
                None,
            ),
            (
                "sorted-by-weight",
                (),
                "slots are summed by weight, highest first, in place of the engine's slots",
                looks.ordered(what, looks.weight_order),
                None,
            ),
            (
                "permuted-order",
                (),
                "each sum is that of its slots in some other order, as atomics leave it",
                None,
                looks.in_some_order(what),
            ),
        )
    ),
    KnownRoutingFault(
        "multiply-then-add",
        (),
        "the product is rounded before it is added",
        "Use an explicit FMA (`tl.fma`, `fmaf`), and compile so that nothing else is fused.",
        "gather",
        looks.by_steps,
    ),
    KnownRoutingFault(
        "float64-sum",
        (),
        "the sum is formed in float64 and rounded at the end",
        "Sum in FP32 by FMA.",
        "gather",
        looks.in_float64,
    ),
    KnownRoutingFault(
        "rounded-every-slot",
        (),
        "the sum is rounded to the rows' dtype after every slot, where the weighted sum is rounded once",
        "Keep the sum in FP32 and round it once.",
        "gather",
        looks.rounded_every_slot,
    ),
    KnownRoutingFault(
        "weight-before-the-sum",
        (),
        "rows are weighted and rounded to their dtype before the sum, as where the experts apply the weights",
        "Apply the weights inside the sum, in FP32.",
        "gather",
        looks.weighted_first,
    ),
    KnownRoutingFault(
        "weights-rounded",
        (),
        "the weights are rounded to the rows' dtype",
        "Keep the weights in FP32.",
        "gather",
        looks.weights_rounded,
    ),
    KnownRoutingFault(
        "empty-slots-add-zero",
        (),
        "an empty slot adds +0, which makes +0 of a sum that is -0",
        "Leave the sum as it is where the position is -1.",
        "gather",
        looks.empty_slots_add_zero,
    ),
    KnownRoutingFault(
        "padding-gradient-not-zeroed",
        (),
        "gradients of padding rows keep whatever the memory held",
        "Write zeros to the padding rows.",
        "gather_backward",
        fits=looks.padding_left(0),
    ),
    KnownRoutingFault(
        "gradient-not-weighted",
        (),
        "the gradient reaches the rows without their weight, as where weights were applied before the gather",
        "Multiply by the slot's weight, then round once.",
        "gather_backward",
        looks.unweighted,
    ),
    KnownRoutingFault(
        "gradient-weights-rounded",
        (),
        "the weights are rounded to the rows' dtype before they are multiplied in",
        "Multiply in FP32, then round once.",
        "gather_backward",
        looks.with_rounded_weights,
    ),
    KnownRoutingFault(
        "dot-of-rounded-products",
        (),
        "the gradient of the weights adds products that were rounded to the rows' dtype",
        "Take the dot product in FP32 by the tree, or declare weight_gradient = 'bounded'.",
        "gather_backward",
        looks.dots(lambda grad, rows: (grad * rows).float().sum(1)),
    ),
    KnownRoutingFault(
        "dot-by-torch-sum",
        (),
        "the gradient of the weights is summed in FP32 as torch does, in an order of its own",
        "Take the dot product by the fixed tree, or declare weight_gradient = 'bounded'.",
        "gather_backward",
        looks.dots(lambda grad, rows: (grad.float() * rows.float()).sum(1)),
    ),
    KnownRoutingFault(
        "sorted-in-place-of-engine-order",
        (),
        "experts stand in their slots by score, where the engine leaves them by index (above the threshold, then at it)",
        "Put them into the engine's order, or declare topk_order = 'sorted' on both sides.",
        "topk",
        lambda i: looks.ranked("sorted", i),
    ),
    KnownRoutingFault(
        "engine-in-place-of-sorted-order",
        (),
        "experts stand in their slots as an unsorted CUDA top-k leaves them, where they are wanted by score",
        "Sort them, or declare topk_order = 'engine' on both sides.",
        "topk",
        lambda i: looks.ranked("engine", i),
    ),
    KnownRoutingFault(
        "ties-to-the-highest-index",
        (),
        "of two equal scores the higher expert index wins",
        "Make the keys unique: the score's bits above, the inverted index below.",
        "topk",
        looks.highest_index_wins,
    ),
    KnownRoutingFault(
        "minus-zero-below-plus-zero",
        (),
        "-0 ranks below +0, since bit patterns are compared",
        "Make +0 of -0 before comparing.",
        "topk",
        looks.signed_zeros,
    ),
    KnownRoutingFault(
        "signs-ignored",
        (),
        "scores are ranked by their magnitude",
        "Order-preserving bits: flip all bits of a negative number, the sign bit of others.",
        "topk",
        looks.magnitudes,
    ),
    KnownRoutingFault(
        "sort-not-stable",
        (),
        "the rows of one expert do not stand in the order of their routes",
        "Sort by expert with a stable sort.",
        "layout",
        looks.from_the_last_route,
    ),
    KnownRoutingFault(
        "slot-major-routes",
        (),
        "routes are numbered slot by slot, not token by token",
        "Number them row-major: token * k + slot.",
        "layout",
        looks.slot_major,
    ),
    KnownRoutingFault(
        "empty-slots-wrapped",
        (),
        "the -1 of an empty slot counts from the end, so it is a route of the last expert",
        "Leave out what is not in 0..E-1.",
        "layout",
        looks.laid_out(lambda i: torch.where(i.ids < 0, i.case.experts - 1, i.ids)),
    ),
    KnownRoutingFault(
        "alignment-ignored",
        (),
        "experts' rows follow one another without padding",
        "Begin each expert at a multiple of the alignment.",
        "layout",
        looks.laid_out(lambda i: i.ids, alignment=1),
    ),
)
"""Order matters: of two faults that explain everything equally well, the first is named."""

OTHER_ROUTING_FAULTS: Final = {
    fault.name: fault
    for fault in (
        KnownRoutingFault(
            "duplicate-destination",
            (),
            "two routes go to one row, and whichever program runs last wins",
            "Find the owner of each row first (the lowest slot), and refuse positions whose owner is another.",
        ),
        KnownRoutingFault(
            "index-not-checked",
            (),
            "a position past the last row is written to, in memory that belongs to something else",
            "Compare each position with the number of rows before the launch.",
        ),
        KnownRoutingFault(
            "int32-overflow",
            (),
            "row * width is computed in 32 bits and wraps where the buffer has more than 2^31 elements",
            "Compute offsets in int64.",
        ),
        KnownRoutingFault(
            "runs-differ",
            (),
            "the same inputs give other bits in another run, as atomics do",
            _IN_ORDER,
        ),
        KnownRoutingFault(
            "nan-ranked",
            (),
            "a NaN is ranked among the scores, wherever its bits put it",
            "Look for NaN before ranking, and raise with the token and expert.",
        ),
        KnownRoutingFault("inputs-changed", (), "an input is changed", "Work on copies, or write to a new tensor."),
        *(KnownRoutingFault(*described) for described in REPLAY_FAULTS),
    )
}
"""Faults that show in what is accepted, left behind or repeated."""


def diagnose_routing(
    what: What,
    inputs: Inputs,
    got: Output | Raised,
    right: Output,
    *,
    seen: Sequence[tuple[Inputs, Output | Raised, Output]] = (),
) -> tuple[KnownRoutingFault, ...]:
    """The known faults that would give exactly `got`, those first that explain most of `seen`.

    One that explains less than half of `seen` is left out.
    """
    fitting = [f for f in KNOWN_ROUTING_FAULTS if f.of == what and f.consistent(inputs, got, right)]
    score = {f.name: sum(f.consistent(*one) for one in seen) for f in fitting}
    likely = [f for f in fitting if 2 * score[f.name] >= len(seen)]
    return tuple(sorted(likely, key=lambda fault: -score[fault.name]))

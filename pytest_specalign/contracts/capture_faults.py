"""Known faults of code that captures states while a target runs, and which of them a result looks like.

Each fault is a tiny function: what it would hand on for a case, in words of `Value`. References are public issues and pull
requests, or the place in an engine where the code was read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from pytest_specalign.contracts import capture_looks as looks
from pytest_specalign.contracts.capture_looks import Captured
from pytest_specalign.contracts.known_faults import Raised
from pytest_specalign.contracts.probe import UNKNOWN

if TYPE_CHECKING:
    from pytest_specalign.contracts.capture_cases import CaptureCase

LooksLike: TypeAlias = "Callable[[CaptureCase], Captured]"

Observation: TypeAlias = "tuple[CaptureCase, Captured]"


@dataclasses.dataclass(frozen=True, slots=True)
class KnownCaptureFault:
    """One public fault.

    Attributes:
        name: what messages and `make faults` call it.
        references: the public reports, if there are any.
        summary: what the faulty code does, one clause.
        remedy: what to do about it, one sentence.
        looks_like: what the fault hands on for a case, in each shape in which it has been seen.
        only: the method in which it can be, or None for any.
    """

    name: str
    references: tuple[str, ...]
    summary: str
    remedy: str
    looks_like: tuple[LooksLike, ...]
    only: str | None = None

    def explains(self, case: CaptureCase, got: Captured) -> bool:
        """Whether the fault would hand on exactly `got`, and `got` is not right."""
        if same(got, case.right()) or self.only not in (None, case.call):
            return False
        return any(same(_outcome(looks_like, case), got) for looks_like in self.looks_like)

    def consistent(self, case: CaptureCase, got: Captured) -> bool:
        """Whether code with the fault may have handed on `got`, right or wrong."""
        return any(same(_outcome(looks_like, case), got) for looks_like in self.looks_like)

    def format(self) -> str:
        return f"{self.name} ({', '.join(self.references) or 'no public report'}): {self.summary}"


KNOWN_CAPTURE_FAULTS: Final = (
    KnownCaptureFault(
        "nothing-captured",
        ("sglang #38589", "sglang PR #38642"),
        "the list that should collect the states never reaches the blocks, so none comes back",
        "Pass the collector by name, and compare the number of states with the number asked for.",
        (lambda case: (),),
    ),
    KnownCaptureFault(
        "one-late-and-the-rest-dropped",
        ("sglang issue #32226", "sglang PR #32334"),
        "every state is taken one block late, and what then lies past the last block is never captured",
        "Compare the boundary number, not the block number, and test once more after the last block.",
        (looks.one_late_then_dropped,),
    ),
    KnownCaptureFault(
        "boundary-n-dropped",
        ("vllm #46973", "vllm #46788", "SGLang 0.5.23 llama and qwen loops"),
        "the loop tests before each block and never after the last one, so boundary n is missing without a word",
        "Test once more after the loop, before the final norm.",
        (looks.last_dropped,),
    ),
    KnownCaptureFault(
        "index-error-at-n",
        ("sglang #32204", "sglang PR #32206"),
        "boundaries are flagged on the list of blocks, which has no element n",
        "Keep the boundaries in a set beside the blocks, or refuse n with a message.",
        (looks.index_error,),
    ),
    KnownCaptureFault(
        "one-block-late",
        ("sglang PR #25454", "tokenspeed #526"),
        "boundary b+1 is handed on for boundary b",
        "Boundary b is the input of block b: capture before that block, or after block b-1.",
        (looks.shifted(1),),
    ),
    KnownCaptureFault(
        "one-block-early",
        ("vllm PR #43671", "onnxruntime-genai #2538", "ModelOpt compute_hidden_states_vllm.py"),
        "boundary b-1 is handed on for boundary b",
        "Boundary b is the output of block b-1: capture after that block, not before it.",
        (looks.shifted(-1),),
    ),
    KnownCaptureFault(
        "post-norm-for-boundary-n",
        ("verl-SpeCo #20", "Automodel #3082"),
        "the stream after the last block is handed on after the final norm, as `output_hidden_states` does",
        "Capture before the final norm, with a hook on the last block or on the norm's input.",
        (looks.normed_last,),
    ),
    KnownCaptureFault(
        "boundary-n-for-post-norm",
        ("sglang PR #39776", "vllm #46075", "ATOM #1742"),
        "POST_NORM was asked for, and the stream before the final norm came",
        "Hand on the final norm's output for POST_NORM, and only for that.",
        (looks.un_normed_last,),
    ),
    KnownCaptureFault(
        "states-ignored",
        ("sglang PR #22836", "tokenspeed #526"),
        "the default boundaries [2, n//2, n-3] come whatever is asked for (set too late, or hard-coded)",
        "Hand the states to the target before its graph is captured.",
        (looks.default,),
    ),
    KnownCaptureFault(
        "every-state-returned",
        ("EAGLE #294",),
        "all n+1 states come back in place of the ones asked for",
        "Select the states that were asked for.",
        (looks.every_state, looks.every_hf_state),
    ),
    KnownCaptureFault(
        "residual-dropped",
        ("no public report",),
        "hidden alone is handed on where a residual is carried beside it",
        "Hand on hidden + residual.",
        (looks.without_residual,),
    ),
    KnownCaptureFault(
        "residual-alone",
        ("no public report",),
        "the residual is handed on without what the last half of the block adds",
        "Hand on hidden + residual.",
        (looks.residual_only,),
    ),
    KnownCaptureFault(
        "alias",
        ("SGLang 0.5.23 aux_hidden_states.py",),
        "the stream's own tensor is kept, and a later in-place add changes it",
        "Clone what is captured, unless it is a new tensor.",
        (looks.aliased, looks.aliased_and_not_normed),
    ),
    KnownCaptureFault(
        "partial-sum",
        ("SGLang 0.5.23 layer_boundary/stage.py",),
        "a state is taken while the all-reduce over the tensor-parallel ranks is still owed",
        "Complete the all-reduce, then add the residual, then capture.",
        (looks.unreduced,),
        "capture_ranks",
    ),
    KnownCaptureFault(
        "rows-not-gathered",
        ("tokenspeed #419",),
        "a state is taken while its rows are scattered over the ranks",
        "Gather the rows, then capture.",
        (looks.ungathered,),
        "capture_ranks",
    ),
    KnownCaptureFault(
        "earlier-stages-lost",
        ("vllm #36731", "vllm #50514", "rbln #1006", "SGLang 0.5.23 setters"),
        "only the last pipeline stage captures, and the states of earlier stages are dropped",
        "Hand captured states on with the stream, from stage to stage.",
        (looks.last_stage_only, looks.last_stage_and_its_edge),
        "capture_stages",
    ),
    KnownCaptureFault(
        "local-layer-numbers",
        ("vllm #36151",),
        "every pipeline stage counts its blocks from 0",
        "Add the stage's first block number before comparing.",
        (looks.local_numbers,),
        "capture_stages",
    ),
    KnownCaptureFault(
        "stage-edge-captured-twice",
        ("vllm #53901 review",),
        "a boundary between two stages is captured as the output of one and the input of the next",
        "Give each stage the boundaries start+1..end, and boundary 0 to the first.",
        (looks.edge_twice,),
        "capture_stages",
    ),
    KnownCaptureFault(
        "stage-edge-lost",
        ("SGLang 0.5.23 kimi_linear.py against kimi_k3.py",),
        "a boundary between two stages is captured by neither",
        "Give each stage the boundaries start+1..end, and boundary 0 to the first.",
        (looks.edge_lost,),
        "capture_stages",
    ),
    KnownCaptureFault(
        "sorted-by-layer",
        ("SGLang 0.5.23 capture loops",),
        "states come in the order in which the blocks run, not in the order asked for",
        "Put the captured states back in the order asked for, or declare order = 'layer'.",
        (looks.in_layer_order,),
    ),
    KnownCaptureFault(
        "duplicates-collapsed",
        ("SGLang 0.5.23 capture loops", "ModelOpt hf_eagle.py"),
        "a state that is asked for twice comes back once, so the width no longer fits",
        "Refuse it, hand it on twice, or declare duplicates = 'collapse'.",
        (looks.collapsed,),
    ),
    KnownCaptureFault(
        "sorted-and-collapsed",
        ("SGLang 0.5.23 capture loops",),
        "states come once each, in the order in which the blocks run",
        "Put the captured states back in the order asked for and refuse duplicates, or declare both.",
        (looks.sorted_and_collapsed,),
    ),
    KnownCaptureFault(
        "negative-counts-from-the-end",
        ("verl-SpeCo PR #21", "Automodel #3083"),
        "a negative number indexes the states from the end, as a Python list does",
        "Refuse negative numbers.",
        (looks.from_the_end,),
    ),
    KnownCaptureFault(
        "missing-states-dropped",
        ("SGLang 0.5.23 capture loops",),
        "what the target does not have is left out without a word, so fewer states come than were asked for",
        "Refuse states outside 0..n, and compare the number of states with the number asked for.",
        (looks.out_of_range_dropped,),
    ),
)
"""Order matters: of two faults that explain everything equally well, the first is named."""


def same(one: Captured, other: Captured) -> bool:
    if isinstance(one, Raised) and isinstance(other, Raised):
        return one.kind is other.kind
    return one == other


def _outcome(looks_like: LooksLike, case: CaptureCase) -> Captured:
    try:
        return looks_like(case)
    except Exception as error:  # a fault may crash in any way: that is its outcome
        return Raised.of(error)


def diagnose_capture(case: CaptureCase, got: Captured, *, seen: Sequence[Observation] = ()) -> tuple[KnownCaptureFault, ...]:
    """The known faults that would hand on exactly `got` for `case`, those first that explain most of `seen`.

    A fault that agrees with what is right here explains nothing, and one that explains less than half of `seen` is left out.
    """
    if isinstance(got, tuple) and UNKNOWN in got:
        return ()
    fitting = [fault for fault in KNOWN_CAPTURE_FAULTS if fault.explains(case, got)]
    score = {fault.name: sum(fault.consistent(c, g) for c, g in seen) for fault in fitting}
    likely = [fault for fault in fitting if 2 * score[fault.name] >= len(seen)]
    return tuple(sorted(likely, key=lambda fault: -score[fault.name]))

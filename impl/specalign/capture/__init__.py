"""Capture: the states of a target model, proved to be the ones asked for.

`capture_loop` runs blocks itself, `run_stage` those of one pipeline stage; `capture_states` watches any `nn.Module` from
outside.
"""

from specalign.capture.errors import CaptureError
from specalign.capture.hooks import Capture, CapturedForward, capture_states
from specalign.capture.loop import LoopResult, capture_loop
from specalign.capture.plan import CapturePlan
from specalign.capture.stages import Carried, Stage, StageLayout, StageResult, extend, run_stage, skip_stage

__all__ = [
    "Capture",
    "CaptureError",
    "CapturePlan",
    "CapturedForward",
    "Carried",
    "LoopResult",
    "Stage",
    "StageLayout",
    "StageResult",
    "capture_loop",
    "capture_states",
    "extend",
    "run_stage",
    "skip_stage",
]

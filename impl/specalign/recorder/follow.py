"""The hooks of a recording on one model, and what it has to record."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from specalign.capture.errors import CaptureError
from specalign.capture.parts import ModelParts
from specalign.capture.passes import Args, Kwargs, Pass, Reading, Seen, copy_of
from specalign.capture.plan import CapturePlan
from specalign.capture.stream import Copying, check_copyable, snapshot, split_output
from specalign.capture.watch import Watch
from specalign.dump.keys import POST_NORM_KEY, RESIDUAL_FP32, boundary_key, module_key
from specalign.dump.writer import DumpWriter
from specalign.layer_ids import POST_NORM, State
from specalign.recorder.copying import Copier
from specalign.recorder.errors import RecordError
from specalign.recorder.finding import Rows, find_rows
from specalign.recorder.names import RequestNames
from specalign.recorder.recompute import Recomputation
from specalign.recorder.sink import Layout, Mode, Sink

FP32_SUM = "_sglang_residual_sum_fp32"
"""The attribute in which the aligned Megatron layer carries its unrounded residual sum."""

_TAKEN = torch.empty(0)
_LAYER_NAME = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)(?=\.|$)")


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What is recorded.

    Attributes:
        plan: boundaries, and `POST_NORM` if it is asked for, of the whole target.
        modules: the modules that this model has of those asked for, by key.
        residual_fp32: the blocks (global numbers) whose unrounded residual sum is wanted.
        mode: values, fingerprints, or both.
        parameter_names: those of each block's forward, by id of the block: reading them anew would cost every hook.
    """

    plan: CapturePlan
    modules: Mapping[str, nn.Module]
    residual_fp32: frozenset[int]
    mode: Mode
    parameter_names: Mapping[int, Sequence[str]] = dataclasses.field(default_factory=dict)


class RecordingPass(Pass):
    """A forward in progress: what comes by is handed on at once instead of being kept."""

    def __init__(self, wanted: Wanted, parts: ModelParts, copying: Copying, reading: Reading, sink: Sink) -> None:
        super().__init__(wanted.plan, parts, copying, reading)
        self.sink, self._asked = sink, wanted
        self._modules_left = set(wanted.modules)
        self.parameter_names = wanted.parameter_names

    def take(self, state: State, seen: Seen, copying: Copying) -> None:
        """A state has come by: send it on its way."""
        self.captured[state] = _TAKEN
        key, site = _key_and_site(state)
        alone = seen.held is None and seen.residual is None and copying.complete is None
        if alone and not self.sink.keeps_values:
            check_copyable(seen.hidden, None, copying, key)
            self.sink.put(key, seen.hidden, site=site)  # fingerprints are made before the model goes on
        else:
            self.sink.put(key, copy_of(seen, copying, key), site=site)

    def leave_block(self, place: int, args: Args, kwargs: Kwargs, output: Any) -> None:
        """Block `place` has run."""
        super().leave_block(place, args, kwargs, output)
        number = self.parts.stage.start + place
        if number in self._asked.residual_fp32:
            seen = self.read_out(args, kwargs, output, f"block {number}")
            self.sink.put(module_key(RESIDUAL_FP32, number), fp32_sum(seen, number), site="post-block")

    def leave_module(self, key: str, module: nn.Module, output: Any) -> None:
        """A module inside or outside of the blocks has run: its output, or the first tensor of it. Of a block that returns
        `(hidden, residual)` their sum; elsewhere two tensors of one shape are not summed (a norm's, cos and sin).
        """
        hidden, residual = output[0] if isinstance(output, (tuple, list)) and output else output, None
        if any(module is block for block in self.parts.blocks):
            hidden, residual = split_output(output, key)
        if not isinstance(hidden, Tensor):
            raise RecordError(f"{key} returned a {type(hidden).__name__} where a tensor was expected: leave it out of modules=")
        self._modules_left.discard(key)
        if self.sink.keeps_values or residual is not None:
            hidden = snapshot(hidden, residual, Copying(), key)
        self.sink.put(key, hidden)

    def finish(self) -> dict[State, Tensor]:
        """The forward is over: everything asked for must have come by."""
        captured = super().finish()
        if self._modules_left:
            raise RecordError(
                f"the forward is over and {', '.join(sorted(self._modules_left)[:4])} did not run: leave modules that do not"
                " run in every forward out of modules="
            )
        return captured


class Follower(Watch[RecordingPass]):
    """Follows one model; see `record_layers`."""

    caller = "record_layers"

    def __init__(
        self,
        model: nn.Module,
        parts: ModelParts,
        wanted: Wanted,
        *,
        copying: Copying,
        reading: Reading,
        layout: Layout,
        names: RequestNames,
        rows: Rows | None,
        recomputation: Recomputation | None,
    ) -> None:
        super().__init__(model, parts)
        self.parts, self.wanted = parts, wanted
        self._copying, self._reading, self._layout = copying, reading, layout
        self._names, self._rows, self._recomputation = names, rows, recomputation
        self._copier: Copier | None = None
        self._writer: DumpWriter | None = None
        self._comparing = False
        self.lost = 0

    @property
    def forwards(self) -> int:
        """Forwards that ran to their end."""
        return self._names.forward

    def start(self, copier: Copier, writer: DumpWriter) -> None:
        """Put the hooks on; what is recorded goes this way."""
        self._copier, self._writer = copier, writer
        self._put_on()

    def stop(self) -> None:
        """Take the hooks off."""
        self._take_off()

    def _hooked(self) -> tuple[nn.Module, ...]:
        return (*super()._hooked(), *self.wanted.modules.values())

    def _add_hooks(self) -> None:
        # Before those of the blocks: a module that is a block itself runs its hooks in the order in which they were added.
        for key, module in self.wanted.modules.items():
            self._handles.append(module.register_forward_hook(functools.partial(self._after_module, key)))
        super()._add_hooks()

    def _begin(self, args: Any, kwargs: Any) -> RecordingPass | None:
        try:
            return self._open(args, kwargs)
        except CaptureError:
            self.lost += 1
            raise

    def _open(self, args: Any, kwargs: Any) -> RecordingPass | None:
        if self._copier is None:
            return None
        self._copier.check()
        batch = self._rows(args, kwargs) if self._rows is not None else find_rows(self._model, args, kwargs, self._names)
        if batch is None:
            self._copier.stats.skipped += 1
            return None
        self._comparing = self._recomputation is not None and torch.is_grad_enabled()
        opened = self._copier.open()
        try:
            sink = Sink(opened, batch, self.wanted.mode, self._layout)
        except BaseException:
            opened.discard()
            raise
        return RecordingPass(self.wanted, self._parts, self._copying, self._reading, sink)

    def _finish(self, current: RecordingPass, output: Any) -> None:
        current.finish()
        stage = self._parts.stage
        self._names.remember(getattr(output, "past_key_values", None))
        if self._writer is not None:
            where = f"forward {self.forwards} of {type(self._model).__name__}"
            current.sink.commit(self._writer, (stage.start, stage.end), where)
        self._names.forward += 1

    def _abandon(self, current: RecordingPass) -> None:
        # A forward that the model itself failed in is no loss; one that only the recording failed in is a hole.
        self.lost += isinstance(sys.exc_info()[1], CaptureError)
        current.sink.discard()

    def _before_block(self, place: int, block: nn.Module, args: Any, kwargs: Any) -> None:
        super()._before_block(place, block, args, kwargs)
        if self._comparing and self._pass is not None and self._recomputation is not None and not self._is_recomputation():
            number = self._parts.stage.start + place
            self._recomputation.enter(number, self._pass.read_in(block, args, kwargs, self._block(place)), again=False)

    def _after_block(self, place: int, block: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        super()._after_block(place, block, args, kwargs, output)
        if self._comparing and self._pass is not None and self._recomputation is not None and not self._is_recomputation():
            number = self._parts.stage.start + place
            self._recomputation.leave(number, self._pass.read_out(args, kwargs, output, self._block(place)), again=False)

    def _enter_again(self, place: int, args: Any, kwargs: Any) -> None:
        if self._copier is not None:
            self._copier.stats.recomputed += 1
        if self._recomputation is not None:
            seen = self._reader().read_in(self._parts.blocks[place], args, kwargs, self._block(place))
            self._recomputation.enter(self._parts.stage.start + place, seen, again=True)

    def _leave_again(self, place: int, args: Any, kwargs: Any, output: Any) -> None:
        if self._recomputation is not None:
            seen = self._reader().read_out(args, kwargs, output, self._block(place))
            self._recomputation.leave(self._parts.stage.start + place, seen, again=True)

    def _after_module(self, key: str, module: nn.Module, args: Any, output: Any) -> None:
        if not self._is_recomputation():
            self._show(key, lambda current: current.leave_module(key, module, output))

    def _reader(self) -> Pass:
        return Pass(self.wanted.plan, self._parts, self._copying, self._reading)


def fp32_sum(seen: Seen, number: int) -> Tensor:
    """The residual sum behind block `number` before it is rounded: float32, as the model carries it or added here.

    Raises:
        RecordError: no residual is carried, so that hidden is rounded already.
    """
    with torch.no_grad():
        carried = getattr(seen.hidden, FP32_SUM, None)
        if isinstance(carried, Tensor):
            return carried.detach().float().clone(memory_format=torch.contiguous_format)
        hidden, residual = (seen.hidden, seen.residual) if seen.held is None else _held_parts(seen)
        if residual is not None and isinstance(hidden, Tensor):
            return hidden.detach().float() + residual.detach().float()
    raise RecordError(
        f"residual_fp32 was asked for, and block {number} returns neither a residual beside hidden nor {FP32_SUM}: its sum is"
        " rounded inside the block"
    )


def _held_parts(seen: Seen) -> tuple[Tensor | None, Tensor | None]:
    """(what the block adds, the stream before it) of SGLang's residual stream (0.5.23); None once they have been added."""
    held = seen.held
    if held.pending is None or held.residual is None:
        return None, None
    alone = type(held)()  # without the residual its snapshot is the addend alone, complete where tensor parallelism owes a sum
    alone.pending = held.pending
    return alone.snapshot(seen.hidden), held.residual


def find_modules(
    model: nn.Module, parts: ModelParts, patterns: Sequence[str], layers: frozenset[int]
) -> tuple[dict[str, nn.Module], set[str]]:
    """(the modules that the patterns name, by key; the patterns that name none).

    A pattern (fnmatch) is held against the dotted name in the model and against the key without `module.`. Of what lies in
    blocks, the blocks `layers` count.
    """
    number_of = {id(block): parts.stage.start + place for place, block in enumerate(parts.blocks)}
    found: dict[str, nn.Module] = {}
    unused = set(patterns)
    for name, module in model.named_modules():
        layer = _layer_of(model, name, number_of)
        key = module_key(_LAYER_NAME.sub(".layers.0", name, count=1) if layer is not None else name, layer)
        fitting = [pattern for pattern in patterns if any(fnmatch.fnmatchcase(text, pattern) for text in (name, key[7:]))]
        unused.difference_update(fitting)
        if fitting and name and (layer is None or layer in layers):
            found[key] = module
    return found, unused


def _layer_of(model: nn.Module, name: str, number_of: Mapping[int, int]) -> int | None:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        number = number_of.get(id(model.get_submodule(".".join(parts[:end]))))
        if number is not None:
            return number
    return None


def _key_and_site(state: State) -> tuple[str, str]:
    if state is POST_NORM:
        return POST_NORM_KEY, "post-norm"
    return boundary_key(int(state)), "post-block" if state else "pre-block"

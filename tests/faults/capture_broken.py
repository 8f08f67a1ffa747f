"""Broken capture loops, each the right one with one method replaced, so that only the fault differs."""

from __future__ import annotations

from typing import Any

from specalign.layer_ids import POST_NORM
from tests.faults.capture_right import Engine, LayerOrderEngine


class OneLateAndTheRestDropped(Engine):
    """Adds 1 to what are boundaries already; the loop tests before each block only."""

    def capture(self, probe: Any, states: Any) -> Any:
        self.check(states, probe.num_layers)
        found: dict[Any, Any] = {}
        self.run(probe, probe.layers, (probe.embed_tokens(probe.tokens), None), 0, [b + 1 for b in states], found)
        return list(found.values())


class OneLate(Engine):
    def tap(self, boundary: int, stream: Any, model: Any, states: Any, found: dict[Any, Any]) -> None:
        if boundary - 1 in states:
            found[boundary - 1] = self.take(stream, model)

    def handed_on(self, found: dict[Any, Any], states: Any) -> Any:
        return [found[s] for s in states if s in found]


class OneEarly(Engine):
    def tap(self, boundary: int, stream: Any, model: Any, states: Any, found: dict[Any, Any]) -> None:
        if boundary + 1 in states:
            found[boundary + 1] = self.take(stream, model)

    def handed_on(self, found: dict[Any, Any], states: Any) -> Any:
        return [found[s] for s in states if s in found]


class FlagOnEveryBlock(Engine):
    """sets a flag on the block, which there is none of for boundary n."""

    def check(self, states: Any, n: int) -> None:
        super().check(states, n)
        [list(range(n))[b] for b in states if b is not POST_NORM]


class GraphBeforeStates(Engine):
    """The graph is captured with the default, then the states are set."""

    def capture(self, probe: Any, states: Any) -> Any:
        self.check(states, probe.num_layers)
        n = probe.num_layers
        return super().capture(probe, [2, n // 2, n - 3])


class SwallowedCollector(Engine):
    """The blocks take the list in **kwargs and never look at it."""

    def handed_on(self, found: dict[Any, Any], states: Any) -> Any:
        return []


class UnNormedForPostNorm(Engine):
    def finish(self, model: Any, stream: Any, n: int, states: Any, found: dict[Any, Any]) -> None:
        self.tap(n, stream, model, states, found)
        if POST_NORM in states:
            found[POST_NORM] = self.take(stream, model)


class NoLastBoundary(Engine):
    def finish(self, model: Any, stream: Any, n: int, states: Any, found: dict[Any, Any]) -> None:
        if POST_NORM in states:
            found[POST_NORM] = model.norm(*stream)

    def handed_on(self, found: dict[Any, Any], states: Any) -> Any:
        return [found[s] for s in states if s in found]


class DeclaredButDropped(LayerOrderEngine):
    """Declares boundary n out of reach, and drops it in place of refusing it."""

    def check(self, states: Any, n: int) -> None:
        super().check(states, n + 1)

    def finish(self, model: Any, stream: Any, n: int, states: Any, found: dict[Any, Any]) -> None:
        pass


class NormedLast(Engine):
    """Reads `output_hidden_states`, whose last entry is normed."""

    def finish(self, model: Any, stream: Any, n: int, states: Any, found: dict[Any, Any]) -> None:
        found |= {state: model.norm(*stream).clone() for state in (n, POST_NORM) if state in states}


class EveryState(Engine):
    def capture(self, probe: Any, states: Any) -> Any:
        self.check(states, probe.num_layers)
        return super().capture(probe, list(range(probe.num_layers + 1)))


class EveryHfState(Engine):
    def capture(self, probe: Any, states: Any) -> Any:
        self.check(states, probe.num_layers)
        return super().capture(probe, [*range(probe.num_layers), POST_NORM])


class FromTheEnd(Engine):
    def capture(self, probe: Any, states: Any) -> Any:
        n = probe.num_layers
        return super().capture(probe, [s if s is POST_NORM or s >= 0 else n + 1 + s for s in states])


class Unchecked(Engine):
    def check(self, states: Any, n: int) -> None:
        super().check([s for s in states if s is POST_NORM or 0 <= s <= n], n)

    def handed_on(self, found: dict[Any, Any], states: Any) -> Any:
        return [found[s] for s in states if s in found]


class LastStageOnly(Engine):
    """Returns early unless it is the last rank; its own input is not among what it captures."""

    edge = 1

    def capture_stages(self, stages: Any, states: Any) -> Any:
        self.check(states, stages[0].num_layers)
        found: dict[Any, Any] = {}
        stream: Any = (stages[0].embed_tokens(stages[0].tokens), None)
        for stage in stages:
            wanted = [s for s in states if s is POST_NORM or s >= stage.start + self.edge] if stage.is_last else []
            stream = self.run(stage, stage.layers, stream, stage.start, wanted, found)
        self.finish(stages[-1], stream, stages[-1].num_layers, states, found)
        return list(found.values())


class LastStageAndItsEdge(LastStageOnly):
    edge = 0


class LocalNumbers(Engine):
    """enumerate() from 0 on every stage."""

    def capture_stages(self, stages: Any, states: Any) -> Any:
        self.check(states, stages[0].num_layers)
        kept: list[Any] = []
        stream: Any = (stages[0].embed_tokens(stages[0].tokens), None)
        for stage in stages:
            found: dict[Any, Any] = {}
            stream = self.run(stage, stage.layers, stream, 0, states, found)
            if stage.is_last:
                self.finish(stage, stream, stage.end - stage.start, states, found)
            kept += found.values()
        return kept


class EdgeTwice(Engine):
    def capture_stages(self, stages: Any, states: Any) -> Any:
        found = super().capture_stages(stages, states)
        starts = {stage.start for stage in stages[1:]}
        return [tensor for s, tensor in zip(states, found, strict=True) for _ in range(2 if s in starts else 1)]


class EdgeLost(Engine):
    def capture_stages(self, stages: Any, states: Any) -> Any:
        found = super().capture_stages(stages, states)
        starts = {stage.start for stage in stages[1:]}
        return [tensor for s, tensor in zip(states, found, strict=True) if s not in starts]


class SortedByLayer(Engine):
    def handed_on(self, found: dict[Any, Any], states: Any) -> Any:
        return list(found.values())


class Collapsed(Engine):
    def check(self, states: Any, n: int) -> None:
        super().check(list(dict.fromkeys(states)), n)

    def handed_on(self, found: dict[Any, Any], states: Any) -> Any:
        return [found[s] for s in dict.fromkeys(states)]


class SortedAndCollapsed(Collapsed):
    def handed_on(self, found: dict[Any, Any], states: Any) -> Any:
        return list(found.values())


class Aliased(Engine):
    def take(self, stream: Any, model: Any) -> Any:
        return stream[0] if stream[1] is None else super().take(stream, model)


class NoResidual(Engine):
    def take(self, stream: Any, model: Any) -> Any:
        return stream[0].clone()


class OnlyResidual(Engine):
    def take(self, stream: Any, model: Any) -> Any:
        return stream[0].clone() if stream[1] is None else stream[1].clone()


class Unreduced(Engine):
    def take(self, stream: Any, model: Any) -> Any:
        return stream[0].clone() if stream[1] is None else stream[0] + stream[1]


class OneBuffer(Engine):
    """Copies into the same buffer for every batch, as a CUDA graph does."""

    def __init__(self) -> None:
        self.buffers: dict[Any, Any] = {}

    def handed_on(self, found: dict[Any, Any], states: Any) -> Any:
        right = super().handed_on(found, states)
        kept = []
        for place, tensor in enumerate(right):
            key = (place, tensor.dtype, tensor.shape)
            kept.append(self.buffers.setdefault(key, tensor.clone()).copy_(tensor))
        return kept


class HooksLeft(Engine):
    def capture(self, probe: Any, states: Any) -> Any:
        for layer in probe.layers:
            layer.register_forward_hook(lambda module, args, output: None)
        return super().capture(probe, states)


class NoFinally(Engine):
    def capture(self, probe: Any, states: Any) -> Any:
        hooks = [layer.register_forward_hook(lambda module, args, output: None) for layer in probe.layers]
        found = super().capture(probe, states)
        for hook in hooks:
            hook.remove()
        return found


class Swallowed(Engine):
    def capture(self, probe: Any, states: Any) -> Any:
        try:
            return super().capture(probe, states)
        except RuntimeError:
            return []


class WritesToTheModel(Engine):
    def capture(self, probe: Any, states: Any) -> Any:
        found = super().capture(probe, states)
        probe.embed_tokens.weight.data.add_(1)
        return found

"""A right capture loop, written by hand: nothing here calls the library. Each mutant replaces one of its methods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from specalign.layer_ids import POST_NORM


class Engine:
    """Captures boundary b before block b, and boundary n after the last block."""

    def capture(self, probe: Any, states: Sequence[Any]) -> Any:
        self.check(states, probe.num_layers)
        found: dict[Any, Tensor] = {}
        stream = self.run(probe, probe.layers, (probe.embed_tokens(probe.tokens), None), 0, states, found)
        self.finish(probe, stream, probe.num_layers, states, found)
        return self.handed_on(found, states)

    def capture_stages(self, stages: Sequence[Any], states: Sequence[Any]) -> Any:
        self.check(states, stages[0].num_layers)
        found: dict[Any, Tensor] = {}
        stream: tuple[Tensor, Tensor | None] = (stages[0].embed_tokens(stages[0].tokens), None)
        for stage in stages:
            stream = self.run(stage, stage.layers, stream, stage.start, states, found)
        self.finish(stages[-1], stream, stages[-1].num_layers, states, found)
        return self.handed_on(found, states)

    def capture_ranks(self, ranks: Any, states: Sequence[Any]) -> Any:
        return ranks.run(lambda rank: self.capture(rank, states))

    def check(self, states: Sequence[Any], n: int) -> None:
        for state in states:
            if state is not POST_NORM and not 0 <= state <= n:
                raise ValueError(f"boundary {state} is not within 0..{n}")
        if len(set(states)) != len(states):
            raise ValueError(f"{states} names a state twice")

    def run(self, model: Any, layers: Any, stream: Any, first: int, states: Sequence[Any], found: dict[Any, Tensor]) -> Any:
        for block, layer in enumerate(layers, start=first):
            self.tap(block, stream, model, states, found)
            stream = layer(*stream) if model.layout.style == "residual" else (layer(stream[0]), None)
        return stream

    def tap(self, boundary: int, stream: Any, model: Any, states: Sequence[Any], found: dict[Any, Tensor]) -> None:
        if boundary in states:
            found[boundary] = self.take(stream, model)

    def take(self, stream: Any, model: Any) -> Tensor:
        hidden, residual = stream
        if residual is None:
            return hidden.clone()
        if getattr(model, "kind", None) == "scattered":
            return model.all_gather(hidden + residual)
        return (model.all_reduce(hidden) if hasattr(model, "all_reduce") else hidden) + residual

    def finish(self, model: Any, stream: Any, n: int, states: Sequence[Any], found: dict[Any, Tensor]) -> None:
        self.tap(n, stream, model, states, found)
        if POST_NORM in states:
            found[POST_NORM] = model.norm(*stream)

    def handed_on(self, found: dict[Any, Tensor], states: Sequence[Any]) -> Any:
        return [found[state] for state in states]


class KeepsDuplicates(Engine):
    """Right for one that declares duplicates "keep"."""

    def check(self, states: Sequence[Any], n: int) -> None:
        super().check(list(dict.fromkeys(states)), n)


class LayerOrderEngine(Engine):
    """Right for one that declares order "layer", duplicates "collapse" and no boundary n, as dense models of SGLang do."""

    def check(self, states: Sequence[Any], n: int) -> None:
        super().check(list(dict.fromkeys(states)), n - 1)

    def handed_on(self, found: dict[Any, Tensor], states: Sequence[Any]) -> Any:
        return list(found.values())

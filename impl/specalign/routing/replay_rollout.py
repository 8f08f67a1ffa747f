"""The experts that a rollout engine chose for one request, taken in from its answers.

SGLang answers with `meta_info["routed_experts"]`: base64 of little-endian int32, `[rows, layers, k]`, where row r belongs to
token position start + r and rows = tokens - 1 - start: the last token was sampled and never read. `layers` counts all layers of
the model, those without experts too.
"""

from __future__ import annotations

import base64
import binascii

import numpy as np
import torch
from torch import Tensor

from specalign.routing.errors import RoutingError
from specalign.routing.replay_ids import check_distinct, check_range

ITEM = 4


class RolloutRoutes:
    """The routes of one request, `[rows, layers, k]` int32, grown answer by answer (an aborted request goes on in a second one).

    Args:
        request: what messages call it.
        num_layers: all layers of the model.
    """

    def __init__(self, request: str, *, num_layers: int, topk: int, num_experts: int) -> None:
        if min(num_layers, topk, num_experts) < 1 or topk > num_experts:
            raise RoutingError(f"request {request}: {num_layers} layers, top-{topk} of {num_experts} experts is no MoE model")
        self.request, self.num_layers, self.topk, self.num_experts = request, num_layers, topk, num_experts
        self._parts: list[Tensor] = []

    @property
    def rows(self) -> int:
        """How many token positions, from 0 on, have routes."""
        return sum(len(part) for part in self._parts)

    def append(self, payload: str | bytes | None, *, tokens: int, start: int = 0) -> None:
        """Take in one answer. After an error nothing has changed.

        Args:
            payload: `meta_info["routed_experts"]`.
            tokens: how many tokens the request had when the answer was given, prompt and all answers so far.
            start: the first position that the answer has a row for (`routed_experts_start_len` of the question).

        Raises:
            RoutingError: no payload, no base64, another length than (tokens - 1 - start) * layers * k * 4 bytes, an id outside
                [0, num_experts), rows that are there already, or a gap before them.
        """
        where = f"request {self.request}, routed_experts from position {start} of {tokens} tokens"
        if not 0 <= start < tokens:
            raise RoutingError(f"{where}: start is not in [0, {tokens})")
        part = self._shaped(_decoded(payload, where), tokens - 1 - start, where)
        check_range(part, self.num_experts, where, ("row", "layer", "slot"))
        if start != self.rows:
            raise RoutingError(f"{where}: {self._misplaced(start)}")
        self._parts.append(part)

    def cut(self, rows: int) -> None:
        """Keep the first `rows` positions only: the request went back to there. Raises `RoutingError` for more than there are."""
        if not 0 <= rows <= self.rows:
            raise RoutingError(f"request {self.request}: cannot cut to {rows} rows, it has {self.rows}")
        self._parts = [self._all()[:rows].clone()]

    def layer(self, layer: int, *, tokens: int) -> Tensor:
        """`[tokens - 1, k]` int32, a copy: the routes of layer `layer`, counted from 0 over all layers.

        Raises:
            RoutingError: no such layer, rows of another number of tokens, or an expert twice in one row, as where the layer has
                no experts and its rows are zeros.
        """
        if not 0 <= layer < self.num_layers:
            raise RoutingError(f"request {self.request}: layer {layer} is not in [0, {self.num_layers})")
        if self.rows != tokens - 1:
            raise RoutingError(
                f"request {self.request}: routes of {self.rows} positions for {tokens} tokens, which need {tokens - 1}"
                f" ({self.rows - tokens + 1:+d}): an answer is missing, or the tokens are not those of the rollout"
            )
        found = self._all()[:, layer].clone()
        check_distinct(found, f"request {self.request}, layer {layer}")
        return found

    def _all(self) -> Tensor:
        return torch.cat([torch.empty(0, self.num_layers, self.topk, dtype=torch.int32), *self._parts])

    def _shaped(self, raw: bytes, rows: int, where: str) -> Tensor:
        row = self.num_layers * self.topk * ITEM
        if len(raw) != rows * row:
            whole = f", which is {len(raw) // row} rows" if len(raw) % row == 0 else f", no whole number of rows of {row} bytes"
            raise RoutingError(
                f"{where}: {len(raw)} bytes{whole}; {rows} rows (tokens - 1 - start) of {self.num_layers} layers and"
                f" {self.topk} int32 slots are {rows * row} ({len(raw) - rows * row:+d}). Count the layers"
                " without experts, and no row for the last token"
            )
        ids = np.frombuffer(raw, "<i4").astype(np.int32)
        return torch.from_numpy(ids).view(rows, self.num_layers, self.topk)

    def _misplaced(self, start: int) -> str:
        if start < self.rows:
            return (
                f"rows {start} to {self.rows - 1} are there already. What was sampled is not written over: ask with"
                f" routed_experts_start_len={self.rows}, or cut({start}) first if the request went back"
            )
        return f"rows {self.rows} to {start - 1} are missing: an answer before it was not taken in"


def _decoded(payload: str | bytes | None, where: str) -> bytes:
    if payload is None:
        raise RoutingError(
            f"{where}: the answer has none. Start the server with --enable-return-routed-experts and ask with"
            " return_routed_experts"
        )
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise RoutingError(f"{where}: no base64 ({error})") from None

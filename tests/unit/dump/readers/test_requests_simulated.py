"""Against a simulated scheduler that knows the truth: requests are told rightly or not at all, whatever it does."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import numpy as np
import pytest

from specalign.dump.errors import DumpError
from specalign.dump.readers.requests import Batch, Segmenter


@dataclasses.dataclass(eq=False)
class Request:
    """One true request: its tokens in full, how many its KV cache holds, and its slot in the pool."""

    name: str
    tokens: list[int]
    prompt: int
    slot: int = -1
    done: int = 0


@dataclasses.dataclass
class Pass:
    """What one pass holds: each request with the positions that ran."""

    mode: str
    parts: list[tuple[Request, range]]


class Scheduler:
    """Continuous batching as SGLang does it: prefill first, in chunks, behind cached prefixes; then all that run decode."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        roll = self.random
        self.vocabulary = roll.choice([2, 3, 50])
        shared = [roll.randrange(self.vocabulary) for _ in range(8)]
        self.waiting = []
        for i in range(roll.randrange(1, 7)):
            head = shared[: roll.randrange(0, 8)] if roll.random() < 0.5 else []
            prompt = [*head, *(roll.randrange(self.vocabulary) for _ in range(roll.randrange(1, 6)))]
            new = [roll.randrange(self.vocabulary) for _ in range(roll.randrange(0, 7))]
            self.waiting.append(Request(f"r{i}", prompt + new, len(prompt)))
        self.running: list[Request] = []
        self.cached: list[list[int]] = []
        self.free = list(range(10))

    def passes(self) -> Iterator[Pass]:
        while self.waiting or self.running:
            if self.waiting and (not self.running or self.random.random() < 0.6):
                yield self._prefill()
            elif self.running:
                yield self._decode()

    def _prefill(self) -> Pass:
        parts = []
        for request in self.waiting[: self.random.randrange(1, 4)]:
            if request.slot < 0:
                request.slot = self.free.pop(self.random.randrange(len(self.free)))
                request.done = self._cached(request) if self.random.random() < 0.7 else 0
            rest = request.prompt - request.done
            count = rest if self.random.random() < 0.7 else self.random.randrange(1, rest + 1)
            parts.append((request, range(request.done, request.done + count)))
            request.done += count
            if count < rest:
                break  # only the last of a batch is cut
        for request, _ in parts:
            self.cached.append(request.tokens[: request.done])
            if request.done == request.prompt:
                self.waiting.remove(request)
                self._keep(request, self.running)
        return Pass("extend", parts)

    def _decode(self) -> Pass:
        if len(self.running) > 1 and self.random.random() < 0.15:  # memory is short: one has to start again
            request = self.running.pop(self.random.randrange(len(self.running)))
            request.prompt = request.done + 1
            self.free.append(request.slot)
            request.slot, request.done = -1, 0
            self.waiting.append(request)
        ran, self.running = self.running, []
        parts = [(request, range(request.done, request.done + 1)) for request in ran]
        for request in ran:
            request.done += 1
            self.cached.append(request.tokens[: request.done])
            self._keep(request, self.running)
        return Pass("decode", parts)

    def _keep(self, request: Request, running: list[Request]) -> None:
        if request.done < len(request.tokens):
            running.append(request)
        else:
            self.free.append(request.slot)

    def _cached(self, request: Request) -> int:
        """The longest prefix that some cache entry shares; at least one token is always computed."""
        best = 0
        for entry in self.cached:
            same = next(
                (i for i, (a, b) in enumerate(zip(entry, request.tokens, strict=False)) if a != b),
                min(len(entry), len(request.tokens)),
            )
            best = max(best, same)
        return min(best, request.prompt - 1)


def batch(made: Pass, *, rids: bool, slots: bool, mode: bool) -> Batch:
    tokens = [r.tokens[p] for r, positions in made.parts for p in positions]
    return Batch(
        np.array(tokens, np.int64),
        np.array([p for _, positions in made.parts for p in positions], np.int64),
        seq_lens=np.array([positions.stop for _, positions in made.parts], np.int64),
        slots=np.array([r.slot for r, _ in made.parts], np.int64) if slots else None,
        rids=tuple(r.name for r, _ in made.parts) if rids else None,
        mode=made.mode if mode else "",
    )


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize("mode", [False, True])
def test_without_ids_every_row_has_the_history_of_its_true_request(slots: bool, mode: bool) -> None:
    """Whatever the label, the tokens that it has before a row are those that the row's true request has there."""
    told = 0
    for seed in range(400):
        segmenter = Segmenter()
        histories: dict[str, dict[int, int]] = {}
        for made in Scheduler(seed).passes():
            try:
                rows = segmenter.rows(batch(made, rids=False, slots=slots, mode=mode))
            except DumpError:
                break
            told += 1
            truth = [(r, p) for r, positions in made.parts for p in positions]
            for (request, position), label in zip(truth, rows.requests.tolist(), strict=True):
                history = histories.setdefault(rows.request_ids[label], {})
                before = {p: t for p, t in history.items() if p < position}
                assert before == {p: request.tokens[p] for p in before}, (seed, request.name, position)
                history[position] = request.tokens[position]
    assert told > 1000


def test_with_ids_everything_is_told() -> None:
    for seed in range(400):
        segmenter = Segmenter()
        for made in Scheduler(seed).passes():
            rows = segmenter.rows(batch(made, rids=True, slots=False, mode=True))
            truth = [r.name for r, positions in made.parts for _ in positions]
            assert [rows.request_ids[i] for i in rows.requests.tolist()] == truth
            assert set(rows.kinds.tolist()) == {0 if made.mode == "extend" else 1}
        assert not any("no request ids" in note for note in segmenter.notes)

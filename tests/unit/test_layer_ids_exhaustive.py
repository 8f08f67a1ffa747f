"""Every triple of ids on up to 24 layers and every single id on up to 128, against a target that is run block by block.

The reference knows no boundaries: it runs a loop over blocks whose stream is a text, and looks the ids up in what the blocks
read and left behind.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from specalign.layer_ids import POST_NORM, RULES, LayerIdError, Rule, State, dflash_boundaries, eagle3_boundaries

NAMES = ("boundary", "output", "hf", "as_is_if_max_is_n", "plus_one_if_first_is_1")


class Target:
    """A run over n blocks: what each block read, what it left, and the normed end."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.read, self.left = [], []
        stream = "embedding"
        for block in range(n):
            self.read.append(stream)
            stream = f"after block {block}"
            self.left.append(stream)
        self.before_norm = stream
        self.after_norm = f"norm({stream})"

    def look_up(self, name: str, ids: tuple[int, ...]) -> list[str] | None:
        """The streams that the ids mean, or None where one of them means nothing."""
        tapped = [*self.read, self.before_norm]
        outputs = {"output": True, "as_is_if_max_is_n": self.n not in ids, "plus_one_if_first_is_1": ids[0] == 1}
        if outputs.get(name, False):
            tapped = self.left
        elif name == "hf":
            tapped = [*self.read, self.after_norm]
        return [tapped[k] for k in ids] if all(0 <= k < len(tapped) for k in ids) else None

    def stream_of(self, state: State) -> str:
        if state is POST_NORM:
            return f"norm(after block {self.n - 1})"
        return "embedding" if state == 0 else f"after block {state - 1}"


def converted(rule: Rule, ids: tuple[int, ...], target: Target, streams: dict[State, str]) -> list[str] | None:
    try:
        return [streams[state] for state in rule.states(ids, target.n)]
    except LayerIdError:
        return None


def triples(n: int) -> Iterator[tuple[int, ...]]:
    """All of them, from -1 to n+1: in every order, with and without duplicates, within the target and just outside."""
    return itertools.product(range(-1, n + 2), repeat=3)


def streams_of(target: Target) -> dict[State, str]:
    return {state: target.stream_of(state) for state in (*range(target.n + 1), POST_NORM)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("deep", [range(1, 19), range(19, 23), range(23, 25)], ids=["to18", "to22", "to24"])
def test_every_triple_means_what_the_blocks_say(name: str, deep: range) -> None:
    refuse, keep = RULES[name], RULES[name].narrowed(duplicates="keep")
    compared = 0
    for n in deep:
        target = Target(n)
        streams = streams_of(target)
        for ids in triples(n):
            expected = target.look_up(name, ids)
            if len(set(ids)) < 3:
                assert converted(keep, ids, target, streams) == expected, (name, ids, n)
                expected = None
            assert converted(refuse, ids, target, streams) == expected, (name, ids, n)
            compared += 1
    assert compared == sum((n + 3) ** 3 for n in deep)


@pytest.mark.parametrize("name", NAMES)
def test_every_single_id_means_what_the_blocks_say(name: str) -> None:
    for n in range(1, 129):
        target = Target(n)
        streams = streams_of(target)
        for k in range(-1, n + 3):
            assert converted(RULES[name], (k,), target, streams) == target.look_up(name, (k,)), (name, k, n)


@pytest.mark.parametrize(("name", "convert"), [("as_is_if_max_is_n", eagle3_boundaries), ("output", dflash_boundaries)])
def test_the_two_named_functions_are_their_rules(name: str, convert: object) -> None:
    assert callable(convert)
    for n in range(1, 129):
        target = Target(n)
        for k in range(n + 2):
            expected = target.look_up(name, (k,))
            try:
                got = [target.stream_of(b) for b in convert([k], n)]
            except LayerIdError:
                got = None
            assert got == expected, (k, n)

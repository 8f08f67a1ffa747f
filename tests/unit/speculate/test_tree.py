"""Trees: who follows whom and who sees whom, by hand; the best nodes against an exhaustive search; drafts against `draft_rows`."""

from __future__ import annotations

import itertools

import pytest
import torch

from specalign.draft import KVCache
from specalign.speculate.drafter import Drafter, TreeShape
from specalign.speculate.rows import draft_rows
from specalign.speculate.slots import Slots, causal
from specalign.speculate.tree import ROOT, among_columns, ancestors, children

from .pairs import HIDDEN, VOCABULARY, make_head

#      root
#     0    1
#    2 3    4
#    5
PARENTS = [ROOT, ROOT, 0, 0, 1, 2]


def test_paths_by_hand() -> None:
    found = ancestors(torch.tensor([PARENTS]))[0]
    paths = [[0], [1], [0, 2], [0, 3], [1, 4], [0, 2, 5]]
    assert [row.nonzero()[:, 0].tolist() for row in found] == paths
    columns = among_columns(torch.tensor([PARENTS]))[0]
    assert [row.nonzero()[:, 0].tolist() for row in columns] == [[0], *([0, *(n + 1 for n in path)] for path in paths)]
    assert [children(PARENTS, node) for node in (ROOT, 0, 1, 2, 5)] == [[0, 1], [2, 3], [4], [5], []]


def text(seed: int, length: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (1, length), generator=generator)
    return tokens, torch.randn(1, length, HIDDEN, generator=generator, dtype=torch.float64)


def following(head: object, tokens: torch.Tensor, states: torch.Tensor) -> Drafter:
    drafter = Drafter(head, len(tokens))  # type: ignore[arg-type]
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    drafter.follow(tokens, [states] * 3, places, torch.ones_like(tokens, dtype=torch.bool))
    return drafter


def brute(head, tokens, states, path):  # type: ignore[no-untyped-def]
    """log p of a path of draft tokens after the text, one token a step with a cache of its own."""
    cache, total = KVCache(), 0.0
    step = head(tokens[0], head.combine_states([states[0]] * 3), torch.arange(tokens.shape[1]), cache)
    normed, recycled = step.normed[-1], step.recycled[-1]
    for place, token in enumerate(path):
        total += float(head.logits(normed).log_softmax(-1)[token])
        position = torch.tensor([tokens.shape[1] + place])
        step = head(torch.tensor([token]), recycled[None], position, cache)
        normed, recycled = step.normed[0], step.recycled[0]
    return total


@pytest.mark.parametrize(
    "kind", [{}, {"layer_types": ("sliding_attention",), "sliding_window": 4}], ids=["full", "a window of 4"]
)
@pytest.mark.parametrize(("depth", "width"), [(3, 3), (4, 2)])
def test_the_tree_holds_the_most_likely_paths_of_those_followed(kind: dict[str, object], depth: int, width: int) -> None:
    """At each depth the children of the best nodes; every path scored one token at a time."""
    head = make_head(**kind)
    tokens, states = text(2)  # here one parent has two of the best children, so that paths change places
    tree = following(head, tokens, states).propose(TreeShape(depth, width, 9))

    known: dict[tuple[int, ...], float] = {}

    def score(path: tuple[int, ...]) -> float:
        if path not in known:
            known[path] = brute(head, tokens, states, path)
        return known[path]

    def best(paths: list[tuple[int, ...]], count: int) -> list[tuple[int, ...]]:
        return sorted(paths, key=lambda path: -score(path))[:count]

    frontier = best([(token,) for token in range(VOCABULARY)], width)
    drafted = list(frontier)
    for _ in range(depth - 1):
        level = [child for path in frontier for child in best([(*path, token) for token in range(VOCABULARY)], width)]
        drafted += level
        frontier = best(level, width)
    wanted = set(best(drafted, 9))
    parents, said = tree.parents[0].tolist(), tree.tokens[0].tolist()

    def path_of(node: int) -> tuple[int, ...]:
        return () if node == ROOT else (*path_of(parents[node]), said[node])

    assert {path_of(node) for node in range(9)} == wanted
    exact = torch.tensor([score(path_of(node)) for node in range(9)], dtype=torch.float64)
    torch.testing.assert_close(tree.scores[0], exact, rtol=1e-9, atol=1e-9)
    assert [len(path_of(node)) for node in range(9)] == tree.depths[0].tolist()
    every = following(head, tokens, states).propose(TreeShape(depth, width))
    parents, said = every.parents[0].tolist(), every.tokens[0].tolist()
    exact = torch.tensor([score(path_of(node)) for node in range(len(said))], dtype=torch.float64)
    torch.testing.assert_close(every.scores[0], exact, rtol=1e-9, atol=1e-9)
    parents, said = tree.parents[0].tolist(), tree.tokens[0].tolist()
    assert all(parent < node for node, parent in enumerate(parents))


@pytest.mark.parametrize("small", [False, True])
def test_a_chain_is_that_of_all_rows_at_once(small: bool) -> None:
    head = make_head(small=small)
    tokens, states = text(5)
    rows = draft_rows(head, tokens, head.combine_states([states] * 3), 4, first=tokens.shape[1] - 1)
    expected = [int(head.vocab.to_target(head.logits(step.normed[0, 0]).argmax(-1))) for step in rows]
    drafter = following(head, tokens, states)
    assert drafter.propose(TreeShape(4)).tokens[0].tolist() == expected
    assert drafter.propose(TreeShape(4)).tokens[0].tolist() == expected  # nothing of the first drafts is left in the cache


def test_holes_close_in_order_and_each_sequence_keeps_its_own() -> None:
    slots = Slots(2, torch.device("cpu"))
    slots.add(torch.tensor([[True, True, True, False], [True, True, True, True]]))
    kept = slots.drop(torch.tensor([[False, True, False, False], [False] * 4]))
    assert kept is None  # as many columns as before are needed
    assert slots.held.tolist() == [[True, False, True, False], [True] * 4]
    kept = slots.drop(torch.tensor([[False] * 4, [True, False, False, True]]))
    assert kept is not None
    assert kept.tolist() == [[0, 2], [1, 2]]
    assert slots.held.tolist() == [[True, True], [True, True]]
    assert slots.see(causal(torch.tensor([[True, True], [True, False]]))).tolist() == [
        [[True, True, True, False], [True, True, True, True]],
        [[True, True, True, False], [True, True, True, True]],
    ]


def test_a_hole_is_seen_by_nobody_but_itself() -> None:
    seen = causal(torch.tensor([[False, True, True]]))[0]
    assert seen.tolist() == [[True, False, False], [False, True, False], [False, True, True]]


@pytest.mark.parametrize(("depth", "width"), list(itertools.product((1, 2, 3), (1, 2, 3))))
def test_a_tree_has_as_many_nodes_as_its_shape_says(depth: int, width: int) -> None:
    tokens, states = text(6)
    tree = following(make_head(), tokens, states).propose(TreeShape(depth, width))
    assert tree.tokens.shape == (1, width + (depth - 1) * width**2)
    assert tree.depth == [depth]

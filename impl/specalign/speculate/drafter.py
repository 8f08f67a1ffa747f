"""A draft head at work for a batch: it follows what the target has said, and proposes a tree of drafts.

Each round the head first takes the tokens that were just verified with the target's own states (never with what it had recycled
for them), then drafts from its own outputs. Trees are those of EAGLE-2 (arXiv 2406.16858): at each depth the `width` most
likely nodes are followed by their `width` most likely children, and in the end the `nodes` most likely ones of all are proposed.
With a width of 1 this is a chain of argmaxes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from specalign.draft import DraftError, Eagle3Head, KVCache
from specalign.speculate.slots import Slots, causal
from specalign.speculate.tree import ROOT, Tree


@dataclasses.dataclass(frozen=True, slots=True)
class TreeShape:
    """How much is drafted.

    Attributes:
        depth: draft steps: the most drafts that a round can accept.
        width: nodes that are followed at each depth; 1 is a chain.
        nodes: drafts proposed in all; None for as many as are drafted.
    """

    depth: int = 4
    width: int = 1
    nodes: int | None = None

    def __post_init__(self) -> None:
        most = self.width + (self.depth - 1) * self.width**2
        if self.depth < 1 or self.width < 1 or not 1 <= (most if self.nodes is None else self.nodes) <= most:
            raise DraftError(
                f"no tree has depth {self.depth}, width {self.width} and {self.nodes} nodes: depth and width are at least 1, and"
                f" that many steps draft at most {most} nodes"
            )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """Nodes of one depth: tokens, parents and log probabilities of their paths, [batch, count]; their distributions if drawn."""

    tokens: torch.Tensor
    parents: torch.Tensor
    scores: torch.Tensor
    chances: torch.Tensor | None = None


class Drafter:
    """A head and its cache for one batch."""

    def __init__(self, head: Eagle3Head, batch: int) -> None:
        self._head = head
        self._cache = KVCache()
        self._slots = Slots(batch, next(head.parameters()).device)
        nothing = torch.empty(batch, 0)
        self._normed, self._recycled, self._position = nothing, nothing, nothing

    def follow(self, tokens: torch.Tensor, states: Sequence[torch.Tensor], positions: torch.Tensor, real: torch.Tensor) -> None:
        """Take what the target has said.

        Args:
            tokens: of row t the token after its position, int64 [batch, T].
            states: the target's states of those positions, each [batch, T, hidden].
            positions: int64 [batch, T].
            real: which of them are no padding, bool [batch, T], a prefix of each sequence; a sequence with none is over.
        """
        head = self._head
        hidden = head.combine_states([state.to(self._dtype) for state in states])
        step = head(tokens, hidden, positions, self._cache, seen=self._slots.see(causal(real)))
        self._slots.add(real)
        rows, last = torch.arange(len(tokens), device=tokens.device), (real.sum(dim=1) - 1).clamp(min=0)
        self._normed, self._recycled = step.normed[rows, last], step.recycled[rows, last]
        self._position = positions[rows, last]

    @property
    def _dtype(self) -> torch.dtype:
        return self._head.norm.weight.dtype

    def propose(self, shape: TreeShape, *, temperature: float = 0.0, generator: torch.Generator | None = None) -> Tree:
        """Drafts after the last token that was followed. The cache is as before.

        Args:
            shape: of the tree.
            temperature: 0 chooses the most likely tokens; above 0 a chain's tokens are drawn, as lossless sampling wants them.
            generator: of the drawing.

        Raises:
            DraftError: a temperature and a width above 1: nodes of a tree are chosen, never drawn; a width beyond the head's
                vocabulary.
        """
        if temperature and shape.width > 1:
            raise DraftError("nodes of a tree are chosen and not drawn: draft it with temperature 0, whatever the target's is")
        if shape.width > self._head.vocab.size:
            raise DraftError(f"a node has at most {self._head.vocab.size} children, the head's vocabulary; not {shape.width}")
        before, held = len(self._cache), self._slots.held
        level = self._children(self._normed[:, None], None, shape.width, temperature, generator)
        levels, frontier = [level], level
        first = torch.arange(level.tokens.shape[1], device=level.tokens.device).expand_as(level.tokens)  # nodes of the frontier
        paths = torch.zeros(*first.shape, 0, dtype=torch.bool, device=first.device)  # the columns that they see, of those drafted
        recycled = self._recycled[:, None].expand(-1, first.shape[1], -1)
        count = first.shape[1]
        for depth in range(1, shape.depth):
            itself = torch.eye(first.shape[1], dtype=torch.bool, device=first.device).expand(len(first), -1, -1)
            paths = torch.cat((paths, itself), dim=-1)
            past = held[:, None, :].expand(-1, first.shape[1], -1)
            positions = (self._position + depth)[:, None].expand_as(first)
            step = self._head(frontier.tokens, recycled, positions, self._cache, seen=torch.cat((past, paths), dim=-1))
            level = self._children(step.normed, frontier.scores, shape.width, temperature, generator)
            chosen = level.scores.topk(shape.width, dim=1).indices if shape.width > 1 else torch.zeros_like(level.parents)
            parent_places = level.parents
            level = dataclasses.replace(level, parents=first.gather(1, parent_places))
            levels.append(level)
            frontier = _Level(*(part.gather(1, chosen) for part in (level.tokens, level.parents, level.scores)))
            came_from = parent_places.gather(1, chosen)
            paths = paths.gather(1, came_from[:, :, None].expand(-1, -1, paths.shape[2]))
            recycled = step.recycled.gather(1, came_from[:, :, None].expand(-1, -1, step.recycled.shape[2]))
            first, count = count + chosen, count + level.tokens.shape[1]
        self._cache.crop(before)
        return _chosen(levels, shape.nodes)

    def tidy(self) -> None:
        """Close the holes of a ragged batch."""
        columns = self._slots.drop(torch.zeros_like(self._slots.held))
        if columns is not None:
            self._cache.keep(columns)

    def _children(
        self,
        normed: torch.Tensor,
        scores: torch.Tensor | None,
        width: int,
        temperature: float,
        generator: torch.Generator | None,
    ) -> _Level:
        """The `width` children of each of F nodes, [batch, F * width]; their parents are places 0..F-1 (`ROOT` at the root)."""
        head = self._head
        logits = head.logits(normed)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        chances = None
        if temperature:
            narrow = (logits / temperature).softmax(-1)
            drawn = torch.multinomial(narrow.flatten(0, 1), 1, generator=generator).view(*narrow.shape[:-1], 1)
            chances = _widened(narrow, head)
        else:
            drawn = logits.argmax(-1, keepdim=True) if width == 1 else logits.topk(width, dim=-1).indices
        path = logits.log_softmax(-1).gather(-1, drawn)
        if scores is not None:
            path = path + scores[:, :, None]
        places = torch.arange(normed.shape[1], device=drawn.device)[None, :, None].expand_as(drawn)
        parents = torch.full_like(places, ROOT) if scores is None else places
        return _Level(head.vocab.to_target(drawn).flatten(1), parents.flatten(1), path.flatten(1), chances)


def _widened(narrow: torch.Tensor, head: Eagle3Head) -> torch.Tensor:
    """Probabilities over draft tokens, as probabilities over target tokens."""
    targets = head.vocab.targets
    if targets is None:
        return narrow
    wide = narrow.new_zeros(*narrow.shape[:-1], head.vocab.target_size)
    wide[..., targets.to(narrow.device)] = narrow
    return wide


def _chosen(levels: Sequence[_Level], nodes: int | None) -> Tree:
    """The `nodes` most likely of all levels. A path is never more likely than its beginning, so that parents are among them."""
    tokens, parents, scores = (
        torch.cat([getattr(level, name) for level in levels], dim=1) for name in ("tokens", "parents", "scores")
    )
    depths = torch.cat([torch.full_like(level.tokens, depth) for depth, level in enumerate(levels, start=1)], dim=1)
    chances = None
    if levels[0].chances is not None:
        chances = torch.cat([level.chances for level in levels if level.chances is not None], dim=1)
    if nodes is None or nodes >= tokens.shape[1]:
        return Tree(tokens, parents, depths, scores, chances)
    best = scores.argsort(dim=1, descending=True, stable=True)[:, :nodes].sort(dim=1).values
    place = torch.full_like(parents, ROOT)
    place.scatter_(1, best, torch.arange(nodes, device=best.device).expand_as(best))
    kept = parents.gather(1, best)
    moved = torch.where(kept == ROOT, kept, place.gather(1, kept.clamp(min=0)))
    return Tree(tokens.gather(1, best), moved, depths.gather(1, best), scores.gather(1, best))

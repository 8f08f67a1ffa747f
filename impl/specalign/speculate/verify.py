"""Which drafts the target accepts, and its own token after them: greedy, or by lossless sampling.

Sampling (Leviathan et al., arXiv 2211.17192, section 2.3; for several candidates SpecInfer, arXiv 2305.09781, algorithm 2): at a
node with the target's distribution p, a draft that was drawn from q is accepted with probability min(1, p/q), else p becomes
max(p - q, 0), normalised. A draft that was chosen and not drawn has q = 1, so it is accepted with probability p, and otherwise
struck from p. What is left gives the token after a refusal. Every token so comes from the target's distribution.
"""

from __future__ import annotations

import dataclasses

import torch

from specalign.speculate.tree import ROOT, Tree, children


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """Of one sequence.

    Attributes:
        path: the accepted nodes, from the first on.
        token: what the target says after them.
        proposed: drafts that were looked at on the way: the depth of the tree.
    """

    path: tuple[int, ...]
    token: int
    proposed: int


def verify_greedy(tree: Tree, logits: torch.Tensor) -> list[Verdict]:
    """The drafts that the target would have said itself: one verdict a sequence.

    Args:
        tree: the drafts.
        logits: of the root and the nodes, [batch, D + 1, vocabulary]; of equal ones the lowest token counts.
    """
    said = logits.argmax(-1).tolist()
    found = []
    for answers, tokens, parents, depth in zip(said, tree.tokens.tolist(), tree.parents.tolist(), tree.depth, strict=True):
        path: list[int] = []
        node = ROOT
        while (match := next((c for c in children(parents, node) if tokens[c] == answers[node + 1]), None)) is not None:
            path.append(match)
            node = match
        found.append(Verdict(tuple(path), answers[node + 1], depth))
    return found


def verify_sampling(tree: Tree, logits: torch.Tensor, temperature: float, generator: torch.Generator) -> list[Verdict]:
    """Drafts accepted by chance, so that every token is distributed as the target's own at this temperature.

    Args:
        tree, logits: as in `verify_greedy`.
        temperature: above 0.
        generator: of the device of the logits.
    """
    chances = (logits.double() / temperature).softmax(-1)
    draws = torch.rand(len(logits), tree.tokens.shape[1], generator=generator, device=logits.device, dtype=torch.float64).tolist()
    found = []
    for row, (tokens, parents, depth) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), tree.depth, strict=True)):
        path: list[int] = []
        node, left = ROOT, chances[row, 0]
        candidates = children(parents, node)
        while candidates:
            draft = candidates.pop(0)
            drawn = None if tree.chances is None else tree.chances[row, draft].double()
            accept = left[tokens[draft]] if drawn is None else left[tokens[draft]] / drawn[tokens[draft]]
            if draws[row][draft] < float(accept):
                path.append(draft)
                node, left = draft, chances[row, draft + 1]
                candidates = children(parents, node)
            else:
                left = _without(left, tokens[draft], drawn)
        found.append(Verdict(tuple(path), int(torch.multinomial(left, 1, generator=generator)), depth))
    return found


def _without(left: torch.Tensor, token: int, drawn: torch.Tensor | None) -> torch.Tensor:
    """What is left of a distribution after a draft was refused."""
    if drawn is None:
        rest = left.clone()
        rest[token] = 0
    else:
        rest = (left - drawn).clamp(min=0)
    return rest / rest.sum()

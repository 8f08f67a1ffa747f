"""Training one EAGLE3 head: a training-time test over several steps, with the target's own distribution as the goal."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from texts import Texts
from torch import nn

from specalign.capture import capture_states
from specalign.draft import Eagle3Head
from specalign.layer_ids import POST_NORM
from specalign.speculate import draft_rows


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a head is trained.

    Attributes:
        steps: of the training-time test.
        decay: weight of a step over that of the one before.
        rate: the highest learning rate, of AdamW, after a warm-up and before a cosine to 2% of it.
        batch: texts of a step of the optimizer.
        seconds: after which the last step is taken; the schedule goes by time.
        seed: of the order of the texts.
        report: steps between two lines of the log.
    """

    steps: int = 5
    decay: float = 0.8
    rate: float = 1e-3
    batch: int = 64
    seconds: float = 240.0
    seed: int = 0
    report: int = 200


@dataclasses.dataclass(frozen=True)
class Stored:
    """What the target says about the texts, each [texts, length, hidden] in bfloat16.

    Attributes:
        states: by boundary.
        final: POST_NORM, out of which its lm_head makes the logits.
    """

    states: dict[int, torch.Tensor]
    final: torch.Tensor


@torch.no_grad()
def store_states(model: nn.Module, texts: Texts, boundaries: set[int], batch: int) -> Stored:
    """One pass of the target over all texts."""
    device = next(model.parameters()).device
    wanted = [*sorted(boundaries), POST_NORM]
    parts: list[list[torch.Tensor]] = [[] for _ in wanted]
    for at in range(0, len(texts), batch):
        with capture_states(model, wanted) as capture:
            model(input_ids=texts.tokens[at : at + batch].to(device), use_cache=False, logits_to_keep=1)
        for place, state in enumerate(capture.states):
            parts[place].append(state.to(torch.bfloat16))
    *states, final = (torch.cat(part) for part in parts)
    return Stored(dict(zip(sorted(boundaries), states, strict=True)), final)


class SoftCrossEntropy(torch.autograd.Function):
    """Mean cross entropy of logits [N, V] against probabilities [N, V], both bfloat16; nothing that large is kept in float32."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        largest = logits.float().logsumexp(-1)
        inner = torch.einsum("nv,nv->n", logits, goal).float()
        ctx.save_for_backward(logits, goal, largest)
        return (largest * goal.sum(-1, dtype=torch.float32) - inner).mean()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, goal, largest = ctx.saved_tensors
        gradient = (logits.float() - largest[:, None]).exp_()
        gradient.mul_(goal.sum(-1, dtype=torch.float32)[:, None]).sub_(goal.float()).mul_(grads[0] / len(logits))
        return gradient.to(logits.dtype), None


def train_head(
    head: Eagle3Head, lm_head: torch.Tensor, texts: Texts, stored: Stored, boundaries: list[int], recipe: Recipe
) -> Iterator[dict[str, float]]:
    """Trains the head in place (float32 weights, bfloat16 passes), and tells how it goes.

    Args:
        lm_head: the target's, [vocabulary, hidden].
        boundaries: whose states the head takes, in its order.
    """
    parameters = [parameter for parameter in head.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.0)
    generator = torch.Generator().manual_seed(recipe.seed)
    goal_rows = (
        None if head.config.draft_vocab_size is None else head.vocab.to_target(torch.arange(head.vocab.size)).to(lm_head.device)
    )
    begin, count, seen = time.monotonic(), 0, 0
    while (progress := (time.monotonic() - begin) / recipe.seconds) < 1:
        rate = recipe.rate * min(1.0, (count + 1) / 100) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        which = torch.randint(0, len(texts), (recipe.batch,), generator=generator)
        losses, right = _losses(head, lm_head, goal_rows, texts.chosen(which), _at(stored, which, boundaries), recipe)
        optimizer.zero_grad(set_to_none=True)
        torch.stack([loss * recipe.decay**step for step, loss in enumerate(losses)]).sum().backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        count, seen = count + 1, seen + recipe.batch
        if count % recipe.report == 0:
            yield {"step": count, "texts": seen, "seconds": time.monotonic() - begin, "rate": rate} | {
                f"top1_{step}": float(share) for step, share in enumerate(right)
            }  # fmt: skip


def _at(stored: Stored, which: torch.Tensor, boundaries: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    places = which.to(stored.final.device)
    return torch.cat([stored.states[b][places] for b in boundaries], dim=-1), stored.final[places]


def _losses(
    head: Eagle3Head,
    lm_head: torch.Tensor,
    goal_rows: torch.Tensor | None,
    texts: Texts,
    stored: tuple[torch.Tensor, torch.Tensor],
    recipe: Recipe,
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The loss and the share of right first choices of each step, over the rows that guess a token of an answer."""
    device = lm_head.device
    tokens, begins, ends = (part.to(device) for part in (texts.tokens, texts.begins, texts.ends))
    states, final = stored
    places = torch.arange(tokens.shape[1] - 1, device=device)
    losses, right = [], []
    with torch.autocast(device.type, torch.bfloat16):
        hidden = head.combine_states(states[:, :-1])
        for step, made in enumerate(draft_rows(head, tokens[:, 1:], hidden, recipe.steps, teacher=True)):
            # Row t guesses x[t + 2 + step]; the target's distribution of it stands at position t + 1 + step.
            guessed = places + 2 + step
            rows = (guessed >= begins[:, None]) & (guessed < ends[:, None])
            text, row = rows.nonzero(as_tuple=True)
            with torch.no_grad():
                all_logits = final[text, row + 1 + step] @ lm_head.to(torch.bfloat16).T
                first = all_logits.argmax(-1)
                goal_logits = all_logits if goal_rows is None else all_logits[:, goal_rows]
                goal = goal_logits.float().softmax(-1).to(torch.bfloat16)
            logits = head.logits(made.normed[text, row])
            if goal_rows is not None:  # rows whose best token the head cannot say teach it nothing
                known = (goal_rows[goal_logits.argmax(-1)] == first).nonzero()[:, 0]
                losses.append(SoftCrossEntropy.apply(logits[known], goal[known]))
            else:
                losses.append(SoftCrossEntropy.apply(logits, goal))
            with torch.no_grad():
                right.append((head.vocab.to_target(logits.argmax(-1)) == first).float().mean())
    return losses, right

"""Text that the target itself writes: answers to the training prompts, and to prompts that it makes up.

A head must guess what this target says, so no other text will do. A model that was trained on chats also continues an empty user
turn, and so makes up prompts of the kind it knows (Magpie, arXiv 2406.08464): as many as one likes.
"""

from __future__ import annotations

import dataclasses
import random
import time
from typing import Any

import torch
from pair import ASSISTANT, END, END_TOKEN, SYSTEM, USER, as_chat
from torch import nn


@dataclasses.dataclass(frozen=True)
class Texts:
    """Token rows of one length, padded on the right.

    Attributes:
        tokens: int64 [texts, length].
        begins: where the answer begins, int64 [texts].
        ends: how many tokens a text has, int64 [texts].
    """

    tokens: torch.Tensor
    begins: torch.Tensor
    ends: torch.Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def chosen(self, which: torch.Tensor) -> Texts:
        """Some of the texts."""
        return Texts(self.tokens[which], self.begins[which], self.ends[which])


@torch.no_grad()
def sample(
    model: nn.Module, rows: list[list[int]], new: int, temperature: float, stop: int | None = END_TOKEN
) -> list[list[int]]:
    """What the target says after each row of tokens, at most `new` tokens; temperature 0 is greedy.

    Rows are padded on the left; positions count from each row's own first token.
    """
    device = next(model.parameters()).device
    width = max(map(len, rows))
    tokens = torch.full((len(rows), width), END_TOKEN, device=device)
    mask = torch.zeros((len(rows), width), dtype=torch.int64, device=device)
    for place, row in enumerate(rows):
        tokens[place, width - len(row) :] = torch.tensor(row, device=device)
        mask[place, width - len(row) :] = 1
    past, said = None, []
    done = torch.zeros(len(rows), dtype=torch.bool, device=device)
    given, positions = tokens, (mask.cumsum(-1) - 1).clamp(min=0)
    for _ in range(new):
        out: Any = model(
            input_ids=given, attention_mask=mask, position_ids=positions, past_key_values=past, use_cache=True, logits_to_keep=1
        )
        past, logits = out.past_key_values, out.logits[:, -1].float()
        pick = logits.argmax(-1) if not temperature else torch.multinomial((logits / temperature).softmax(-1), 1)[:, 0]
        said.append(pick)
        if stop is not None:
            done |= pick == stop
            if bool(done.all()):
                break
        given, positions = pick[:, None], positions[:, -1:] + 1
        mask = torch.cat((mask, torch.ones_like(mask[:, :1])), dim=-1)
    lines: list[list[int]] = torch.stack(said, dim=1).tolist()
    return [line[: line.index(stop) + 1] if stop in line else line for line in lines]


def write_texts(
    model: nn.Module, tokenizer: Any, prompts: list[str], *, new: int, invented: int, length: int, batch: int, seconds: float
) -> Texts:
    """A greedy answer to each prompt, then sampled ones, half of them to prompts of the target's own, until the time is up.

    Args:
        new: most tokens of an answer.
        invented: most tokens of a prompt that the target makes up; longer ones are dropped.
        length: of the rows, in tokens.
        batch: answers at a time.
        seconds: after which no batch is begun.
    """

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    begin = time.monotonic()
    known = [row for row in map(encode, map(as_chat, prompts)) if len(row) <= length - 16]
    texts = [text for at in range(0, len(known), batch) for text in _answers(model, known[at : at + batch], new, 0.0)]
    opening, closing = encode(SYSTEM + USER), encode(END + ASSISTANT)
    chosen = random.Random(0)
    while time.monotonic() - begin < seconds:
        said = sample(model, [opening] * batch, invented, 1.0)
        made = [opening + line[:-1] + closing for line in said if line[-1] == END_TOKEN and len(line) > 4]
        rows = made[: batch // 2]
        texts += _answers(model, rows + chosen.choices(known, k=batch - len(rows)), new, 0.8)
        print(f"{len(texts)} texts, {len(made)} of {batch} prompts made up, {time.monotonic() - begin:.0f} s", flush=True)
    return _padded(texts, length)


def _answers(model: nn.Module, rows: list[list[int]], new: int, temperature: float) -> list[tuple[list[int], int]]:
    """Each row with its answer, and where that begins."""
    return [(row + said, len(row)) for row, said in zip(rows, sample(model, rows, new, temperature), strict=True)]


def _padded(texts: list[tuple[list[int], int]], length: int) -> Texts:
    tokens = torch.full((len(texts), length), END_TOKEN)
    for place, (line, _) in enumerate(texts):
        tokens[place, : len(line[:length])] = torch.tensor(line[:length])
    begins = torch.tensor([begin for _, begin in texts])
    return Texts(tokens, begins, torch.tensor([min(len(line), length) for line, _ in texts]))

"""From prompts to token ids: the model's own chat template, and the target's own answers between the turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from specalign.acceptance.prompts import Prompt
from specalign.draft import DraftError
from specalign.speculate.decode import answer_all
from specalign.speculate.target import Target


def prompt_tokens(target: Target, tokenizer: Any, prompts: Sequence[Prompt], *, new_tokens: int) -> dict[str, list[int]]:
    """Every turn of every prompt as a prompt of its own, by name; a second turn follows the target's own answer to the first.

    Args:
        target: answers the turns that others follow, greedily.
        tokenizer: of transformers. Without a chat template a prompt is plain text, and has one turn.
        prompts: as `read_prompts` gives them.
        new_tokens: of an answer between two turns.

    Returns:
        Token ids by name; the turns of one prompt as `name/1`, `name/2`, ….

    Raises:
        DraftError: several turns and no chat template, one that fails, or two prompts whose turns have one name.
    """
    found: dict[str, list[int]] = {}
    _require_own_names(prompts)
    said: dict[str, list[dict[str, str]]] = {prompt.name: [] for prompt in prompts}
    for turn in range(max((len(prompt.turns) for prompt in prompts), default=0)):
        here = [prompt for prompt in prompts if len(prompt.turns) > turn]
        tokens = {prompt.name: _tokens(tokenizer, prompt, said[prompt.name], turn) for prompt in here}
        found |= {name if _alone(prompts, name) else f"{name}/{turn + 1}": row for name, row in tokens.items()}
        going_on = {prompt.name: tokens[prompt.name] for prompt in here if len(prompt.turns) > turn + 1}
        for name, answer in answer_all(target, going_on, new_tokens).items():
            prompt = next(item for item in here if item.name == name)
            text = tokenizer.decode(answer, skip_special_tokens=True)
            said[name] += [{"role": "user", "content": prompt.turns[turn]}, {"role": "assistant", "content": text}]
    return found


def _require_own_names(prompts: Sequence[Prompt]) -> None:
    """Raises `DraftError` where turns of two prompts end up under one name: "x/1", and the first turn of "x"."""
    told = Counter(
        prompt.name if len(prompt.turns) == 1 else f"{prompt.name}/{turn}"
        for prompt in prompts
        for turn in range(1, len(prompt.turns) + 1)
    )
    twice = next((name for name, times in told.items() if times > 1), None)
    if twice is not None:
        raise DraftError(f"two prompts, or turns of prompts, are named {twice!r}: one would be lost; rename one")


def _alone(prompts: Sequence[Prompt], name: str) -> bool:
    return next(len(prompt.turns) for prompt in prompts if prompt.name == name) == 1


def _tokens(tokenizer: Any, prompt: Prompt, before: Sequence[Mapping[str, str]], turn: int) -> list[int]:
    if not getattr(tokenizer, "chat_template", None):
        if len(prompt.turns) > 1:
            raise DraftError(f"{prompt.name} has {len(prompt.turns)} turns, and the target's tokenizer has no chat template")
        return [int(token) for token in tokenizer(prompt.turns[0])["input_ids"]]
    talk = [*before, {"role": "user", "content": prompt.turns[turn]}]
    try:
        text = tokenizer.apply_chat_template(talk, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a program of the model's owner, and may raise anything
        what = f"{type(error).__name__}: {error}"
        raise DraftError(f"{prompt.name}: the chat template of the target's tokenizer failed ({what})") from error
    return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]

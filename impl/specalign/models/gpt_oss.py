"""GPT-OSS, whole: embedding, blocks, final norm, head; with states captured on the way.

Modules stand in the order in which they are called. After OpenAI's torch reference (`gpt_oss/torch/model.py`); parity with
transformers' `GptOssForCausalLM` is what the conformance tests check.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from specalign.capture import CapturePlan, capture_loop
from specalign.layer_ids import State
from specalign.models.errors import CacheError
from specalign.models.gpt_oss_attention import Attention, Step, visible
from specalign.models.gpt_oss_config import GptOssConfig
from specalign.models.gpt_oss_moe import MoE
from specalign.models.kv_cache import KVCache
from specalign.models.norms import RMSNorm
from specalign.models.rope import Rotary
from specalign.numerics.rope import plain_frequencies, yarn_frequencies


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """What one forward gives.

    Attributes:
        logits: `[batch, tokens, vocabulary]`.
        states: one `[batch, tokens, hidden]` for each state asked for, in that order: copies, safe from later
            writes, and without gradients.
    """

    logits: Tensor
    states: tuple[Tensor, ...] = ()


class Block(nn.Module):
    """One decoder block. It takes a boundary and gives the next one: the residual is added inside."""

    def __init__(self, config: GptOssConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.attention = Attention(config, layer)
        self.moe_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.moe = MoE(config)

    def forward(self, hidden: Tensor, step: Step) -> Tensor:
        """`[batch, tokens, hidden]` to the same shape."""
        hidden = hidden + self.attention(self.attention_norm(hidden), step)
        out: Tensor = hidden + self.moe(self.moe_norm(hidden))
        return out


class GptOss(nn.Module):
    """The model. Weights come from `load_gpt_oss` or `random_gpt_oss`; a bare one has zeros for experts and routers.

    A loop of one's own over the blocks does what `forward` does:

        step = model.prepare(tokens)
        hidden = model.embed(tokens)                 # boundary 0
        for block in model.blocks:
            hidden = block(hidden, step)             # boundary i + 1
        logits = model.head(model.final_norm(hidden))
    """

    def __init__(self, config: GptOssConfig) -> None:
        super().__init__()
        self.config = config
        self.rotary = Rotary(_frequencies(config), config.rope_concentration)
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.final_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        cache: KVCache | None = None,
        capture: tuple[State, ...] = (),
    ) -> Output:
        """Logits for every token, and the states asked for.

        Args:
            tokens: int64 `[batch, tokens]`, sequences of equal length; either may be 0.
            positions: `[tokens]`, ascending by one; None continues the cache, or starts at 0. For rope only.
            cache: holds the tokens before these, and takes these in.
            capture: boundaries 0..n and `POST_NORM`, in the order wanted.

        Raises:
            CaptureError: a state that this model does not have, or the same one twice.
            CacheError: positions that are no run of consecutive numbers, or do not go on where the cache ends.
        """
        step = self.prepare(tokens, positions=positions, cache=cache)
        hidden, states = self._run(self.embed(tokens), step, capture)
        return Output(self.head(self.final_norm(hidden)), states)

    def prepare(self, tokens: Tensor, *, positions: Tensor | None = None, cache: KVCache | None = None) -> Step:
        """What the blocks need beside the residual stream; arguments and errors as in `forward`."""
        if tokens.dim() != 2:
            raise ValueError(f"tokens must be [batch, tokens], not {list(tokens.shape)}; one sequence is tokens[None]")
        past, count, device = cache.length if cache is not None else 0, tokens.shape[1], tokens.device
        if positions is None:
            positions = torch.arange(past, past + count, device=device)
        else:
            _check_positions(positions, count, past if cache is not None else None)
        cos, sin = self.rotary.cos_sin(positions, self.embed.weight.dtype)
        masks = {window: visible(past, count, window, device) for window in set(self.config.windows)}
        return Step(cos, sin, masks, cache)

    def _run(self, hidden: Tensor, step: Step, capture: tuple[State, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        """All blocks over boundary 0: boundary n, and the states."""
        if not capture:
            for block in self.blocks:
                hidden = block(hidden, step)
            return hidden, ()
        plan = CapturePlan(capture, self.config.num_hidden_layers)
        result = capture_loop(
            list(self.blocks), hidden, plan, final_norm=self.final_norm, call=lambda block, hidden, _: block(hidden, step)
        )
        return result.hidden, result.states

    def new_cache(self, *, rollback: int | None = None) -> KVCache:
        """An empty cache for this model; `rollback` as in `KVCache`."""
        return KVCache(self.config.windows, rollback=rollback)


def _frequencies(config: GptOssConfig) -> Tensor:
    if config.rope_type == "default":
        return plain_frequencies(config.head_dim, config.rope_theta)
    return yarn_frequencies(
        config.head_dim,
        config.rope_theta,
        factor=config.rope_factor,
        original_length=config.rope_original_length,
        beta_fast=config.rope_beta_fast,
        beta_slow=config.rope_beta_slow,
        truncate=config.rope_truncate,
    )


def _check_positions(positions: Tensor, count: int, past: int | None) -> None:
    if positions.shape != (count,):
        raise CacheError(f"positions must be [{count}], one for each token, not {list(positions.shape)}")
    if count and not bool((positions.diff() == 1).all()):
        raise CacheError(f"positions must ascend by one, since masks count rows; these are {positions.tolist()[:20]}")
    if count and past is not None and int(positions[0]) != past:
        raise CacheError(
            f"the first position is {int(positions[0])}, but the cache holds {past} rows; crop the cache, or drop one"
        )

"""RMSNorm, and the way from the target's states to the head's hidden state: input_norm, fc_norm, fc.

Both norms before `fc` may be on. The order is fixed and that of SGLang 0.5.23 (`llama_eagle3.py:241-250`), vLLM 0.33.0
(`combine_hidden_states`) and speculators (`models/eagle3/core.py`): `input_norm` over the whole concatenation, then `fc_norm`
for each chunk, then `fc`. Unlike in SGLang, none of it is skipped when the states are as wide as the head.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from specalign.draft.config import Eagle3Config
from specalign.draft.errors import DraftError


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis.

    The mean and the division are in float32 (float64 for float64 input); the result is cast to the input's dtype and then
    multiplied by `weight`, as transformers' LlamaRMSNorm does. Engines that multiply before the cast (SGLang's default) differ
    from it by one rounding in bf16 and fp16, and by nothing in fp32.
    """

    def __init__(
        self, width: int, *, eps: float, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width, device=device, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The normed `x`, same shape and dtype: [..., width]."""
        width = self.weight.shape[0]
        if x.shape[-1] != width:
            raise DraftError(f"an RMSNorm over {width} features was given {x.shape[-1]}; shape {tuple(x.shape)}")
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class FcInput(nn.Module):
    """States of the target → the hidden state that the first layer takes.

    Attributes:
        input_norm: RMSNorm over chunks * width features, or None.
        fc_norm: one RMSNorm over width features for each chunk, or None.
        fc: the projection; None for a head without `use_aux_hidden_state`, which takes POST_NORM as it is.
    """

    def __init__(
        self, config: Eagle3Config, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.chunks, self.width, eps = config.chunks, config.target_hidden_size, config.rms_norm_eps
        self.input_norm: RMSNorm | None = None
        self.fc_norm: nn.ModuleList | None = None
        self.fc: nn.Linear | None = None
        if config.norm_before_fc:
            self.input_norm = RMSNorm(config.fc_inputs, eps=eps, device=device, dtype=dtype)
        if config.fc_norm:
            norms = (RMSNorm(self.width, eps=eps, device=device, dtype=dtype) for _ in range(self.chunks))
            self.fc_norm = nn.ModuleList(norms)
        if config.use_aux_hidden_state:
            self.fc = nn.Linear(config.fc_inputs, config.hidden_size, bias=False, device=device, dtype=dtype)

    def forward(self, states: Sequence[torch.Tensor] | torch.Tensor) -> torch.Tensor:
        """The hidden state [..., hidden_size] out of `states`.

        Args:
            states: one tensor [..., width] for each id, in the order of the config's ids; or their concatenation
                [..., chunks * width]. A head without `use_aux_hidden_state` takes one state, POST_NORM.

        Raises:
            DraftError: another number of states, or another width.
        """
        joined = self._joined(states)
        if self.fc is None:
            return joined
        if self.input_norm is not None:
            joined = self.input_norm(joined)
        if self.fc_norm is not None:
            chunks = joined.chunk(self.chunks, dim=-1)
            joined = torch.cat([norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)], dim=-1)
        projected: torch.Tensor = self.fc(joined)
        return projected

    def _joined(self, states: Sequence[torch.Tensor] | torch.Tensor) -> torch.Tensor:
        if isinstance(states, torch.Tensor):
            if states.shape[-1] != self.chunks * self.width:
                raise DraftError(
                    f"the concatenated states have {states.shape[-1]} features, this head takes {self.chunks} * {self.width} ="
                    f" {self.chunks * self.width}; capture one state for each id of the draft's config"
                )
            return states
        if len(states) != self.chunks:
            raise DraftError(
                f"{len(states)} states for a head that takes {self.chunks} of {self.width} features"
                f" ({len(states) * self.width} against {self.chunks * self.width}); capture one for each id of the draft's config"
            )
        for index, state in enumerate(states):
            if state.shape[-1] != self.width or state.shape != states[0].shape:
                raise DraftError(
                    f"state {index} has shape {tuple(state.shape)}, state 0 has {tuple(states[0].shape)}, and each should be"
                    f" {self.width} wide; are they from one pass of the target that this head was made for?"
                )
        return torch.cat(list(states), dim=-1)

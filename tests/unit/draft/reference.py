"""A second EAGLE3 head, for tests: scalar loops and float64, written from the paper and from the engines' documented behaviour.

It shares nothing with the library: no module, no function, no config class, no mask, no cache. One token at a time.
"""

from __future__ import annotations

import math

import numpy as np
import torch

Vector = np.ndarray


def rms(x: Vector, weight: Vector, eps: float) -> Vector:
    return x / math.sqrt(float(np.dot(x, x)) / len(x) + eps) * weight


def silu(x: Vector) -> Vector:
    return x / (1 + np.exp(-x))


def turn(x: Vector, position: int, theta: float) -> Vector:
    """Rotates pairs (i, i + D/2) of one attention head by position * theta^(-2i/D)."""
    out, half = x.copy(), len(x) // 2
    for i in range(half):
        angle = position * theta ** (-2 * i / len(x))
        a, b = x[i], x[i + half]
        out[i], out[i + half] = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
    return out


class NaiveHead:
    """`raw` is the config.json, `tensors` a checkpoint with today's names."""

    def __init__(self, raw: dict, tensors: dict[str, torch.Tensor]) -> None:
        self.raw, self.eps = raw, raw["rms_norm_eps"]
        self.w = {name: tensor.numpy() for name, tensor in tensors.items()}

    def linear(self, name: str, x: Vector) -> Vector:
        return self.w[f"{name}.weight"] @ x + self.w.get(f"{name}.bias", 0.0)

    def norm(self, name: str, x: Vector) -> Vector:
        return rms(x, self.w[f"{name}.weight"], self.eps)

    def combine(self, states: list[Vector]) -> Vector:
        """One token's states → hidden."""
        x = np.concatenate(states)
        if "input_norm.weight" in self.w:
            x = self.norm("input_norm", x)
        if "fc_norm.0.weight" in self.w:
            n = len(states[0])
            x = np.concatenate([self.norm(f"fc_norm.{i}", x[i * n : (i + 1) * n]) for i in range(len(states))])
        return self.linear("fc", x)

    def run(
        self, tokens: list[int], hidden: list[Vector], positions: list[int]
    ) -> tuple[list[Vector], list[Vector], list[Vector]]:
        """Normed and un-normed outputs, and logits, for all tokens of one sequence."""
        stream = list(hidden)
        for layer in range(self.raw["num_hidden_layers"]):
            stream = self._layer(layer, [self.w["embed_tokens.weight"][t] for t in tokens], stream, positions)
        normed = [self.norm("norm", x) for x in stream]
        head = self.w["embed_tokens.weight"] if self.raw.get("tie_word_embeddings") else self.w["lm_head.weight"]
        return normed, stream, [head @ x for x in normed]

    def _layer(self, layer: int, embeds: list[Vector], stream: list[Vector], positions: list[int]) -> list[Vector]:
        at, residual, taken = f"layers.{layer}", [], []
        for embed, x in zip(embeds, stream, strict=True):
            if layer:
                taken.append(self.norm(f"{at}.input_layernorm", x))
                residual.append(x)
                continue
            h = self.norm(f"{at}.hidden_norm", x)
            taken.append(np.concatenate([self.norm(f"{at}.input_layernorm", embed), h]))
            residual.append(h if self.raw.get("norm_before_residual") else x)
        attended = self._attention(at, layer, taken, positions)
        out = []
        for r, a in zip(residual, attended, strict=True):
            x = r + a
            y = self.norm(f"{at}.post_attention_layernorm", x)
            inner = silu(self.linear(f"{at}.mlp.gate_proj", y)) * self.linear(f"{at}.mlp.up_proj", y)
            out.append(x + self.linear(f"{at}.mlp.down_proj", inner))
        return out

    def _attention(self, at: str, layer: int, taken: list[Vector], positions: list[int]) -> list[Vector]:
        dim, heads, kv_heads = (self.raw[k] for k in ("head_dim", "num_attention_heads", "num_key_value_heads"))
        split = {p: [self.linear(f"{at}.self_attn.{p}_proj", x).reshape(-1, dim) for x in taken] for p in "qkv"}
        window = self.raw.get("sliding_window") if self.raw.get("layer_types", [""] * 99)[layer] == "sliding_attention" else None
        out = []
        for t in range(len(taken)):
            sees = [s for s in range(t + 1) if window is None or positions[t] - positions[s] < window]
            mixed = []
            for head in range(heads):
                kv = head // (heads // kv_heads)
                q = turn(split["q"][t][head], positions[t], self.raw["rope_theta"])
                scores = np.array([q @ turn(split["k"][s][kv], positions[s], self.raw["rope_theta"]) for s in sees]) / math.sqrt(
                    dim
                )
                weights = np.exp(scores - scores.max())
                weights /= weights.sum()
                mixed.append(sum(w * split["v"][s][kv] for w, s in zip(weights, sees, strict=True)))
            out.append(self.linear(f"{at}.self_attn.o_proj", np.concatenate(mixed)))
        return out

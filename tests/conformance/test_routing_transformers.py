"""Routing against transformers' own routers: the same experts, and the same weights but for the order of one sum.

transformers asks `topk(sorted=False)` and `sum`, whose orders are the device's, so experts are compared as sets and weights expert by
expert: bit for bit without renormalization, within one rounding of each of the sum's steps with it.
"""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from torch import Tensor

from specalign.routing.scoring import Outside, RoutingRule, Score, route

TOKENS, WIDTH, EXPERTS, TOP_K = 300, 24, 32, 6

ROUTERS: dict[str, tuple[str, str, Outside, Score]] = {
    "DeepseekV3": ("deepseek_v3", "DeepseekV3TopkRouter", "-inf", "sigmoid"),
    "Glm4Moe": ("glm4_moe", "Glm4MoeTopkRouter", "-inf", "sigmoid"),
    "GlmMoeDsa": ("glm_moe_dsa", "GlmMoeDsaTopkRouter", "-inf", "sigmoid"),
    "AXK2": ("axk2", "AXK2TopkRouter", "zero", "sigmoid"),
    "Mistral4": ("mistral4", "Mistral4TopkRouter", "zero", "softmax"),
}


def router_of(name: str, **settings: Any) -> Any:
    module, kind, _, _ = ROUTERS[name]
    loaded = import_module(f"transformers.models.{module}.modeling_{module}")
    config = loaded.__dict__[f"{name}Config"]()
    values = {"hidden_size": WIDTH, "num_experts_per_tok": TOP_K, "n_routed_experts": EXPERTS, "num_local_experts": EXPERTS}
    for key, value in (values | settings).items():
        setattr(config, key, value)
    made = getattr(loaded, kind)(config)
    torch.nn.init.normal_(made.weight, generator=torch.Generator().manual_seed(5))
    return made


def dense(ids: Tensor, weights: Tensor) -> Tensor:
    return torch.zeros(len(ids), EXPERTS).scatter(1, ids, weights)


GROUPS = [(1, 1), (8, 3), (8, 7)]
# Below 0 the zeros outside win. With 8, 3 they are more than k, all tied, and which are taken is up to a device; with 8, 7 all are taken.
CASES = [
    (name, at, groups)
    for name in ROUTERS
    for at in ((0.0, -2.5) if ROUTERS[name][3] == "sigmoid" else (0.0,))
    for groups in GROUPS
    if not (ROUTERS[name][2] == "zero" and at < 0 and groups == (8, 3))
]


@pytest.mark.parametrize("renormalize", [False, True], ids=["raw", "renormalized"])
@pytest.mark.parametrize(("name", "bias_at", "groups"), CASES)
def test_experts_and_weights_are_those_of_transformers(
    name: str, bias_at: float, groups: tuple[int, int], renormalize: bool
) -> None:
    logits, weights, ids, bias = routed_by_transformers(name, bias_at, groups, renormalize)
    made = route(logits, rule_of(name, groups, renormalize, ROUTERS[name][2]), bias=bias)
    assert torch.equal(made.ids.sort(1).values, ids.sort(1).values)
    ours, theirs = dense(made.ids, made.weights), dense(ids, weights)
    torch.testing.assert_close(ours, theirs, rtol=(TOP_K + 1) * 2.0**-24 if renormalize else 0.0, atol=0.0)


@pytest.mark.parametrize("name", ["DeepseekV3", "AXK2"])
def test_the_other_mask_takes_other_experts_where_choices_are_below_zero(name: str) -> None:
    logits, _, ids, bias = routed_by_transformers(name, -2.5, (8, 7), renormalize=False)
    other: Outside = "zero" if ROUTERS[name][2] == "-inf" else "-inf"
    made = route(logits, rule_of(name, (8, 7), False, other), bias=bias)
    assert not (made.ids.sort(1).values == ids.sort(1).values).all(1).any()


def routed_by_transformers(
    name: str, bias_at: float, groups: tuple[int, int], renormalize: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Logits, weights, ids; and the bias, where this router has one."""
    router = router_of(name, n_group=groups[0], topk_group=groups[1], norm_topk_prob=renormalize, routed_scaling_factor=2.5)
    bias = None
    if ROUTERS[name][3] == "sigmoid":
        bias = torch.randn(EXPERTS, generator=torch.Generator().manual_seed(6)) * 0.2 + bias_at
        router.e_score_correction_bias.copy_(bias)
    with torch.no_grad():
        logits, weights, ids = router(torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(4)))
    return logits, weights, ids, bias


def rule_of(name: str, groups: tuple[int, int], renormalize: bool, outside: Outside) -> RoutingRule:
    return RoutingRule(
        top_k=TOP_K, score=ROUTERS[name][3], groups=groups[0], top_groups=groups[1], outside=outside, renormalize=renormalize,
        scale=2.5,
    )  # fmt: skip

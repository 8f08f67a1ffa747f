"""Settings of the draft's own layer: what the config says, where an engine looks for it, and what is lost."""

from __future__ import annotations

from typing import Any

import pytest

from specalign.layer_ids.checks.settings import rope_statements
from tests.unit.checks.made_up import engine, found, report, the
from tests.unit.checks.scenarios import HEAD, H, draft_spec

LAYER = "transformer_layer_config"
YARN = {"rope_type": "yarn", "factor": 32}


def reading(**reads: tuple[str, ...]) -> Any:
    return engine(draft={"reads": reads})


# -- head_dim and attention_bias -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "how_much"),
    [
        ({"head_dim": 128}, "64 against 128"),
        ({"head_dim": 64}, None),
        ({"head_dim": 128, "num_attention_heads": 1}, "2880 against 128"),
        ({"head_dim": 128, "num_attention_heads": 2}, "1440 against 128"),
        ({"head_dim": 128, "num_attention_heads": 0}, None),
        ({"head_dim": 128, "num_attention_heads": None}, None),
        ({"head_dim": "128"}, None),
        ({"head_dim": 128, "hidden_size": None, "target_hidden_size": H}, None),
        ({"head_dim": 128, "hidden_size": 0, "target_hidden_size": H}, None),
        ({"head_dim": None}, None),
    ],
)
def test_a_head_size_that_the_engine_computes_instead(head: dict[str, Any], how_much: str | None) -> None:
    ignored = found("head-dim-ignored", reading(head_dim=()), HEAD | head)
    assert [(f.where, f.how_much) for f in ignored] == ([] if how_much is None else [("head_dim", how_much)])


@pytest.mark.parametrize("places", [("head_dim",), ("a.b", "head_dim")])
def test_a_head_size_that_is_read_is_used(places: tuple[str, ...]) -> None:
    assert not found("head-dim-ignored", reading(head_dim=places), HEAD | {"head_dim": 128})
    assert not found("head-dim-ignored", engine(), HEAD | {"head_dim": 128})
    assert found("head-dim-ignored", reading(head_dim=("a.b",)), HEAD | {"head_dim": 128})


@pytest.mark.parametrize(
    ("head", "code"),
    [
        ({"head_dim": 128}, "head-dim-ignored"),
        ({"attention_bias": True}, "attention-bias-ignored"),
        ({"sliding_window": 128}, "sliding-window-ignored"),
        ({"rope_theta": 5.0}, "rope-theta-ignored"),
        ({"rope_scaling": YARN}, "rope-scaling-ignored"),
    ],
)
def test_the_engines_own_advice_comes_before_ours(head: dict[str, Any], code: str) -> None:
    reads: dict[str, tuple[str, ...]] = dict.fromkeys(
        ("head_dim", "attention_bias", "sliding_window", "rope_theta", "rope_scaling"), ()
    )
    told = engine(draft={"reads": reads, "remedies": {code: "R"}})
    assert the(code, told, HEAD | head).next == "R"
    assert the(code, engine(draft={"reads": reads}), HEAD | head).next not in ("R", "")
    assert not found(code, engine(draft={"reads": reads}, role="trainer"), HEAD | head)
    assert not found(code, engine(draft=None), HEAD | head)


@pytest.mark.parametrize(
    ("bias", "reads", "ignored"),
    [
        (True, {"attention_bias": ()}, True),
        (True, {"attention_bias": ("attention_bias",)}, False),
        (True, {}, False),
        (False, {"attention_bias": ()}, False),
        (None, {"attention_bias": ()}, False),
    ],
)
def test_biases_that_the_engine_drops(bias: bool | None, reads: Any, ignored: bool) -> None:
    dropped = found("attention-bias-ignored", reading(**reads), HEAD | {"attention_bias": bias})
    assert [f.where for f in dropped] == (["attention_bias"] if ignored else [])


# -- rope ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "theta", "scaling"),
    [
        ({}, {}, {}),
        ({"rope_theta": 5.0}, {"rope_theta": 5.0}, {}),
        ({LAYER: {"rope_theta": 5.0}}, {f"{LAYER}.rope_theta": 5.0}, {}),
        ({"text_config": {"rope_theta": 5.0}}, {"text_config.rope_theta": 5.0}, {}),
        ({"rope_parameters": {"rope_theta": 5.0}}, {"rope_parameters.rope_theta": 5.0}, {}),
        ({"rope_scaling": {"rope_theta": 5.0, "rope_type": "default"}}, {"rope_scaling.rope_theta": 5.0}, {}),
        ({"rope_scaling": YARN}, {}, {"rope_scaling": {"rope_type": "yarn", "factor": 32}}),
        ({"rope_parameters": YARN}, {}, {"rope_parameters": {"rope_type": "yarn", "factor": 32}}),
        ({"rope_scaling": {"type": "yarn", "factor": 32}}, {}, {"rope_scaling": {"rope_type": "yarn", "factor": 32}}),
        ({"rope_scaling": {"type": "default", "factor": 32}}, {}, {}),
        ({"rope_scaling": {"factor": 32}}, {}, {}),
        (
            {"rope_parameters": YARN | {"rope_theta": 5.0, "type": "linear"}},
            {"rope_parameters.rope_theta": 5.0},
            {"rope_parameters": {"rope_type": "yarn", "factor": 32}},
        ),
        ({LAYER: {"rope_scaling": YARN}}, {}, {f"{LAYER}.rope_scaling": {"rope_type": "yarn", "factor": 32}}),
        ({"rope_scaling": "yarn"}, {}, {}),
    ],
)
def test_every_place_that_states_rope(head: dict[str, Any], theta: dict[str, Any], scaling: dict[str, Any]) -> None:
    assert rope_statements(draft_spec(HEAD | head)) == {"theta": theta, "scaling": scaling}


@pytest.mark.parametrize(
    ("head", "conflicts"),
    [
        ({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 5.0}}, []),
        (
            {"rope_theta": 5.0, "rope_parameters": {"rope_theta": 5.0}, "rope_scaling": {"rope_theta": 6.0}},
            [
                (
                    "rope theta is stated at 3 places with different values",
                    "rope_theta, rope_parameters.rope_theta, rope_scaling.rope_theta",
                    "rope_theta = 5.0; rope_parameters.rope_theta = 5.0; rope_scaling.rope_theta = 6.0",
                )
            ],
        ),
        ({"rope_scaling": {"type": "yarn", "factor": 32}, "rope_parameters": YARN}, []),
        (
            {"rope_scaling": {"rope_type": "yarn"}, "rope_parameters": {"rope_type": "linear"}},
            [
                (
                    "rope scaling is stated at 2 places with different values",
                    "rope_parameters, rope_scaling",
                    "rope_parameters = {'rope_type': 'linear'}; rope_scaling = {'rope_type': 'yarn'}",
                )
            ],
        ),
        ({"rope_theta": 5.0}, []),
    ],
)
def test_rope_that_is_stated_twice(head: dict[str, Any], conflicts: list[tuple[str, str, str]]) -> None:
    found = [(f.what, f.where, f.how_much) for f in report(engine(), HEAD | head).of(None) if f.code == "rope-conflict"]
    assert found == conflicts


@pytest.mark.parametrize(
    ("head", "reads", "where"),
    [
        ({"rope_theta": 5.0}, {"rope_theta": ("rope_theta",)}, []),
        ({"rope_theta": 5.0}, {"rope_theta": ("rope_parameters",)}, ["rope_theta"]),
        ({"rope_theta": 5.0}, {}, []),
        ({}, {"rope_theta": ()}, []),
        ({"rope_parameters": {"rope_theta": 5.0}}, {"rope_theta": ("rope_parameters",)}, []),
        ({"rope_parameters": {"rope_theta": 5.0}}, {"rope_theta": ("rope_param",)}, ["rope_parameters.rope_theta"]),
        ({LAYER: {"rope_theta": 5.0}}, {"rope_theta": ("rope_theta",)}, []),
        ({LAYER: {"rope_theta": 5.0}}, {"rope_theta": (f"{LAYER}.rope_theta",)}, []),
        ({LAYER: {"rope_theta": 5.0}}, {"rope_theta": ("rope_scaling",)}, [f"{LAYER}.rope_theta"]),
        ({"rope_scaling": YARN}, {"rope_scaling": ("rope_scaling",)}, []),
        ({"rope_scaling": YARN}, {"rope_scaling": ("rope_parameters",)}, ["rope_scaling"]),
        ({"rope_scaling": YARN, "rope_parameters": YARN}, {"rope_scaling": ("a", "rope_parameters")}, []),
    ],
)
def test_rope_that_does_not_reach_the_engine(head: dict[str, Any], reads: Any, where: list[str]) -> None:
    lost = [f for f in report(reading(**reads), HEAD | head).of("made-up==1") if f.code.startswith("rope-")]
    assert [f.where for f in lost] == where


def test_lost_rope_names_all_places_the_value_and_where_to_write_it() -> None:
    head = HEAD | {"rope_theta": 5.0, "rope_parameters": {"rope_theta": 5.0}}
    lost = the("rope-theta-ignored", reading(rope_theta=("a", "b")), head)
    assert lost.what == "the config states rope theta at rope_theta, rope_parameters.rope_theta, the engine reads a, b"
    assert (lost.where, lost.how_much, lost.next) == ("rope_theta", "5.0 is lost", "write it to a as well")
    none = the("rope-theta-ignored", reading(rope_theta=()), head)
    assert none.what.endswith("the engine reads none of it")
    assert none.next == "use an engine that reads it"


def test_lost_scaling_is_found_after_theta_that_is_read() -> None:
    head = HEAD | {"rope_theta": 5.0, "rope_scaling": YARN}
    table = reading(rope_theta=("rope_theta",), rope_scaling=())
    assert [f.code for f in report(table, head).of("made-up==1")] == ["rope-scaling-ignored"]


# -- sliding window --------------------------------------------------------------------------------------------------------


SLIDING, FULL = ["sliding_attention"], ["full_attention"]


@pytest.mark.parametrize(
    ("head", "where"),
    [
        ({"sliding_window": 128}, "sliding_window"),
        ({"sliding_window": 128, "layer_types": SLIDING}, "sliding_window, layer_types"),
        ({"sliding_window": 128, "layer_types": FULL}, ""),
        ({"sliding_window": 128, "layer_types": FULL + SLIDING}, ""),
        ({"sliding_window": 128, "layer_types": FULL + SLIDING, "num_hidden_layers": 2}, "sliding_window, layer_types"),
        ({"sliding_window": 128, "layer_types": "all"}, "sliding_window, layer_types"),
        ({"sliding_window": 128, "use_sliding_window": False}, ""),
        ({"sliding_window": 128, "use_sliding_window": True}, "sliding_window"),
        ({"sliding_window": True}, ""),
        ({"sliding_window": "128"}, ""),
        ({"layer_types": SLIDING}, ""),
        ({"sliding_window": 128, "max_position_embeddings": 128}, ""),
        ({"sliding_window": 128, "max_position_embeddings": 127}, ""),
        ({"sliding_window": 128, "max_position_embeddings": 129}, "sliding_window"),
        ({"sliding_window": 128, "max_position_embeddings": "1"}, "sliding_window"),
        ({"sliding_window": 128, "layer_types": SLIDING, "max_position_embeddings": 64}, ""),
    ],
)
def test_a_window_that_the_draft_has_and_the_engine_ignores(head: dict[str, Any], where: str) -> None:
    lost = found("sliding-window-ignored", reading(sliding_window=(), layer_types=()), HEAD | head)
    assert [f.where for f in lost] == ([where] if where else [])
    assert all(f.how_much == "window 128 against the full context" for f in lost)
    assert all(f"128 tokens and the engine ignores {where.replace(', ', ' and ')}:" in f.what for f in lost)


@pytest.mark.parametrize(
    ("reads", "where"),
    [
        ({"sliding_window": ("sliding_window",), "layer_types": ()}, ["layer_types"]),
        ({"sliding_window": (), "layer_types": ("layer_types",)}, ["sliding_window"]),
        ({"sliding_window": ("sliding_window",), "layer_types": ("layer_types",)}, []),
        ({}, []),
    ],
)
def test_only_what_the_engine_is_known_to_ignore_is_named(reads: Any, where: list[str]) -> None:
    head = HEAD | {"sliding_window": 128, "layer_types": SLIDING}
    assert [f.where for f in found("sliding-window-ignored", reading(**reads), head)] == where

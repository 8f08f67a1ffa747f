"""Capture against transformers itself: tiny random models of five architectures, bit for bit.

transformers says what the states are: `output_hidden_states` gives the embedding output and every block's output up to n-1, then
the final norm's result in place n. A hook of our own on the last block gives boundary n, which that tuple does not hold.
"""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from specalign.capture import CaptureError, CapturePlan, StageLayout, capture_loop, capture_states
from specalign.layer_ids import POST_NORM

N = 4
ALL = (POST_NORM, *range(N, -1, -1))

COMMON: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": N,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


def config(name: str, **more: Any) -> Any:
    return getattr(transformers, f"{name}Config")(**(COMMON | more))


CONFIGS: dict[str, Callable[[], Any]] = {
    "Llama": lambda: config("Llama", head_dim=8),
    "GptOss": lambda: config("GptOss", head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=4),
    "DeepseekV3": lambda: config("DeepseekV3", **LATENT),
    "Glm4Moe": lambda: config(
        "Glm4Moe", head_dim=8, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=16,
        n_group=1, topk_group=1, first_k_dense_replace=1,
    ),
    "GlmMoeDsa": lambda: config("GlmMoeDsa", **LATENT, index_topk=4, index_head_dim=8, index_n_heads=2),
}  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=CONFIGS)
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(CONFIGS[request.param](), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in made.parameters():
            # The usual tiny initialization makes neighbouring boundaries nearly equal; these are far apart.
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.2)
    return made


def token_ids() -> Any:
    return torch.randint(3, 64, (2, 11), generator=torch.Generator().manual_seed(1))


def truth(model: Any, ids: Any) -> dict[Any, Any]:
    """Every state, from transformers' own means."""
    last: list[Any] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        last.append((output[0] if isinstance(output, tuple) else output).clone())

    handle = model.model.layers[N - 1].register_forward_hook(keep)
    with torch.no_grad():
        hidden = model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    handle.remove()
    if len(hidden) != N + 1:
        raise AssertionError(f"transformers gave {len(hidden)} hidden states for {N} layers")
    return {**dict(enumerate(hidden[:N])), N: last[0], POST_NORM: hidden[N]}


def same_bits(one: Any, other: Any) -> bool:
    return one.dtype == other.dtype and torch.equal(one.view(torch.int32), other.view(torch.int32))


def test_every_state_is_bitwise_what_transformers_gives(model: Any) -> None:
    expected = truth(model, token_ids())
    with torch.no_grad(), capture_states(model, ALL) as capture:
        model(input_ids=token_ids(), use_cache=False)
    assert [state for state, tensor in zip(ALL, capture.states, strict=True) if not same_bits(tensor, expected[state])] == []


def test_the_states_are_all_different_so_that_a_shift_would_show(model: Any) -> None:
    expected = truth(model, token_ids())
    gaps = [(expected[b + 1] - expected[b]).abs().max().item() for b in range(N)]
    assert min([*gaps, (expected[POST_NORM] - expected[N]).abs().max().item()]) > 1e-2


def test_the_entry_n_of_output_hidden_states_is_post_norm_and_not_boundary_n(model: Any) -> None:
    expected = truth(model, token_ids())
    with torch.no_grad():
        assert same_bits(model.model.norm(expected[N]), expected[POST_NORM])
    assert not torch.equal(expected[N], expected[POST_NORM])


def test_capture_changes_no_bit_of_the_logits(model: Any) -> None:
    with torch.no_grad():
        plain = model(input_ids=token_ids(), use_cache=False).logits
        with capture_states(model, ALL):
            assert same_bits(model(input_ids=token_ids(), use_cache=False).logits, plain)


def test_capture_and_output_hidden_states_work_side_by_side(model: Any) -> None:
    with torch.no_grad(), capture_states(model, (2, POST_NORM)) as capture:
        hidden = model(input_ids=token_ids(), output_hidden_states=True, use_cache=False).hidden_states
    assert same_bits(capture.states[0], hidden[2])
    assert same_bits(capture.states[1], hidden[N])


def test_each_forward_of_generate_is_one_capture(model: Any) -> None:
    with torch.no_grad(), capture_states(model, (N, 1)) as capture:
        model.generate(token_ids(), max_new_tokens=3, do_sample=False, eos_token_id=None)
    assert [tuple(forward.states[0].shape) for forward in capture.forwards] == [(2, 11, 32), (2, 1, 32), (2, 1, 32)]
    whole = truth(model, token_ids())
    assert torch.allclose(capture.forwards[0].states[0], whole[N], rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["autocast", "inference_mode"])
def test_modes(model: Any, mode: str) -> None:
    context = torch.autocast("cpu", torch.bfloat16) if mode == "autocast" else torch.inference_mode()
    with context:
        expected = truth(model, token_ids())
        with torch.no_grad(), capture_states(model, (0, 2, N)) as capture:
            model(input_ids=token_ids(), use_cache=False)
    assert all(same_bits(tensor, expected[state]) for state, tensor in zip((0, 2, N), capture.states, strict=True))


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_is_captured_once(model: Any, reentrant: bool) -> None:
    expected = truth(model, token_ids())
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    model.enable_input_require_grads()
    model.train()
    with capture_states(model, (0, 2, N)) as capture:
        model(input_ids=token_ids(), use_cache=False).logits.sum().backward()
    assert len(capture.forwards) == 1
    assert all(same_bits(tensor, expected[state]) for state, tensor in zip((0, 2, N), capture.states, strict=True))
    if reentrant:
        with pytest.raises(CaptureError, match="keep_grad=True"), capture_states(model, (N,), keep_grad=True):
            model(input_ids=token_ids(), use_cache=False)
    else:
        with capture_states(model, (N,), keep_grad=True) as capture:
            model(input_ids=token_ids(), use_cache=False)
        model.zero_grad()
        capture.states[0].sum().backward()
        assert model.model.embed_tokens.weight.grad.abs().max().item() > 0


def test_gradient_checkpointing_gives_the_gradients_of_a_plain_run_through_kept_states(model: Any) -> None:
    def gradient() -> Any:
        model.zero_grad()
        with capture_states(model, (2, N), keep_grad=True) as capture:
            model(input_ids=token_ids(), use_cache=False)
        sum(state.square().sum() for state in capture.states).backward()
        return model.model.embed_tokens.weight.grad.clone()

    model.train()
    plain = gradient()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert same_bits(gradient(), plain)


def test_the_loop_and_stages_over_the_models_own_blocks_give_the_same_bits(model: Any) -> None:
    """The loop gets each block's extra arguments (masks, rotary tables, top-k of the layer before) as the model passes them."""
    expected = truth(model, token_ids())
    extras: list[tuple[Any, Any]] = []
    handles = [
        layer.register_forward_pre_hook(lambda m, args, kwargs: extras.append((args[1:], kwargs)), with_kwargs=True)
        for layer in model.model.layers
    ]
    with torch.no_grad():
        model(input_ids=token_ids(), use_cache=False)
    for handle in handles:
        handle.remove()
    given = dict(zip(model.model.layers, extras, strict=True))
    plan = CapturePlan(ALL, N)
    with torch.no_grad():
        result = capture_loop(
            list(model.model.layers),
            model.model.embed_tokens(token_ids()),
            plan,
            final_norm=model.model.norm,
            call=lambda block, hidden, residual: block(hidden, *given[block][0], **given[block][1]),
        )
    assert all(same_bits(tensor, expected[state]) for state, tensor in zip(ALL, result.states, strict=True))


def test_a_pipeline_of_hooked_stages_joins_to_the_same_bits(model: Any) -> None:
    """Two captures of one forward, each of one stage's blocks, joined as a pipeline would."""
    expected = truth(model, token_ids())
    plan, layout = CapturePlan(ALL, N), StageLayout(((0, 1), (1, N)), N)
    first = capture_states(model, plan, blocks=list(model.model.layers[:1]), stage=layout.stage(0))
    last = capture_states(model, plan, blocks=list(model.model.layers[1:]), final_norm=model.model.norm, stage=layout.stage(1))
    with torch.no_grad(), first, last:
        model(input_ids=token_ids(), use_cache=False)
    carried = last.forwards[0].carry(first.forwards[0].carry())
    for state, tensor in zip(ALL, plan.arrange(carried.tensors), strict=True):
        assert same_bits(tensor, expected[state]), state

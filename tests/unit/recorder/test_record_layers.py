"""What was recorded is what the model computed: against transformers' own hidden states, our capture, and plain hooks."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor, nn

from specalign.capture import capture_states
from specalign.dump.fingerprint import fingerprint_rows
from specalign.dump.manifest import read_manifest
from specalign.layer_ids import POST_NORM
from specalign.recorder import RecordError, RowBatch, record_layers
from tests.unit.models.tiny import tiny
from tests.unit.recorder.dumps import AddsInPlace, Block, Embedded, ids, only_pass, read_passes, same_bits, small

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

LAYERS = 4
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def llama(dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    config = transformers.LlamaConfig(
        num_hidden_layers=LAYERS,
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
    )
    torch.manual_seed(0)
    model: nn.Module = transformers.LlamaForCausalLM(config).eval().to(dtype)
    return model


def gpt_oss() -> nn.Module:
    config = transformers.GptOssConfig(
        num_hidden_layers=LAYERS,
        hidden_size=64,
        intermediate_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        vocab_size=64,
        sliding_window=4,
    )
    torch.manual_seed(0)
    model: nn.Module = transformers.GptOssForCausalLM(config).eval()
    return model


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_boundaries_are_transformers_hidden_states(dtype: torch.dtype, tmp_path: Path) -> None:
    model = llama(dtype)
    with torch.no_grad(), record_layers(model, tmp_path / "d", post_norm=True):
        hidden = model(ids(), output_hidden_states=True).hidden_states
    read = only_pass(tmp_path / "d")
    for boundary in range(LAYERS):
        assert same_bits(read[f"boundary.{boundary}"], hidden[boundary].flatten(0, 1)), boundary
    assert same_bits(read["post_norm"], hidden[LAYERS].flatten(0, 1))
    assert not same_bits(read[f"boundary.{LAYERS}"], read["post_norm"])
    assert read.keys == {*(f"boundary.{b}" for b in range(LAYERS + 1)), "post_norm"}


@pytest.mark.parametrize("make", [llama, gpt_oss, tiny], ids=["llama", "transformers' gpt-oss", "our gpt-oss"])
def test_boundaries_are_what_capture_sees(make: object, tmp_path: Path) -> None:
    model = make()  # type: ignore[operator]
    states = (*range(LAYERS + 1), POST_NORM)
    with torch.no_grad(), capture_states(model, states) as captured, record_layers(model, tmp_path / "d", post_norm=True):
        model(ids())
    read = only_pass(tmp_path / "d")
    for state, tensor in zip(states, captured.states, strict=True):
        assert same_bits(read["post_norm" if state is POST_NORM else f"boundary.{state}"], tensor.flatten(0, 1)), state


def test_a_later_addition_in_place_does_not_reach_what_was_recorded(tmp_path: Path) -> None:
    model = Embedded([AddsInPlace(2.0**place) for place in range(4)])
    seen: list[Tensor] = []
    for layer in model.layers:
        layer.register_forward_hook(lambda module, args, output: seen.append(output.clone()))
    with torch.no_grad(), record_layers(model, tmp_path / "d", mode="both"):
        model(ids())
    read = only_pass(tmp_path / "d")
    for place, tensor in enumerate(seen):
        assert same_bits(read[f"boundary.{place + 1}"], tensor.flatten(0, 1))


def test_only_the_layers_asked_for_and_boundary_0(tmp_path: Path) -> None:
    model = small(5)
    with torch.no_grad(), record_layers(model, tmp_path / "d", layers=[3, 1], modules=["*.mlp"]):
        model(ids())
    assert only_pass(tmp_path / "d").keys == {
        "boundary.0",
        "boundary.2",
        "boundary.4",
        "module.layers.1.mlp",
        "module.layers.3.mlp",
    }


def test_modules_are_found_by_either_name_and_recorded_as_they_returned(tmp_path: Path) -> None:
    model = llama(torch.float32)
    seen: dict[str, Tensor] = {}
    attention = model.get_submodule("model.layers.1.self_attn")
    attention.register_forward_hook(lambda module, args, output: seen.update(attention=output[0].clone()))
    patterns = ["model.layers.*.self_attn", "layers.2.mlp.*_proj", "lm_head"]
    with torch.no_grad(), record_layers(model, tmp_path / "d", layers=[1, 2], modules=patterns):
        logits = model(ids()).logits
    read = only_pass(tmp_path / "d")
    assert same_bits(read["module.layers.1.self_attn"], seen["attention"].flatten(0, 1))
    assert same_bits(read["module.lm_head"], logits.flatten(0, 1))
    inside = {key for key in read.keys if "proj" in key}
    assert inside == {f"module.layers.2.mlp.{name}_proj" for name in ("gate", "up", "down")}


def test_a_block_that_returns_a_pair_is_summed_and_a_norm_is_not(tmp_path: Path) -> None:
    from tests.unit.capture.probes import Stack, Wrapped, boundary, start

    model = Wrapped(Stack(residual=True))
    rows = RowBatch(torch.arange(3), torch.arange(3), torch.zeros(3, dtype=int), torch.zeros(3, dtype=int), ("a",))
    with record_layers(
        model, tmp_path / "d", rows=lambda args, kwargs: rows, modules=["*layers.3", "*.norm"], residual_fp32=True
    ):
        model(start())
    read = only_pass(tmp_path / "d")
    for place in range(7):
        assert same_bits(read[f"boundary.{place}"], boundary(place, start())), place
    assert same_bits(read["module.layers.3"], boundary(4, start()))
    assert same_bits(read["module.model.norm"], boundary(6, start()) * 1000)
    assert read["module.layers.5.residual_fp32"].dtype == torch.float32


def test_the_unrounded_residual_sum_tells_what_rounding_hides(tmp_path: Path) -> None:
    class Pair(nn.Module):
        def forward(self, hidden_states: Tensor, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
            residual = hidden_states if residual is None else hidden_states + residual
            return torch.full_like(residual, 2.0**-9), residual

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([Pair()])

        def forward(self, input_ids: Tensor) -> Tensor:
            hidden = torch.ones(*input_ids.shape, 4, dtype=torch.bfloat16)
            return self.layers[0](hidden)[0]

    with record_layers(Model(), tmp_path / "d", residual_fp32=True) as recording:
        recording._followers[0]._model(ids())
    read = only_pass(tmp_path / "d")
    assert (read["boundary.1"] == 1).all()  # 1 + 2^-9 rounds to 1 in bf16
    assert (read["module.layers.0.residual_fp32"] == 1 + 2.0**-9).all()


def test_the_carried_sum_of_the_aligned_megatron_layer_is_recorded(tmp_path: Path) -> None:
    class Carries(Block):
        def forward(self, hidden_states: Tensor) -> Tensor:
            out = super().forward(hidden_states)
            out._sglang_residual_sum_fp32 = out.float() + 2.0**-20
            return out

    model = Embedded([Carries(), Carries()])
    with torch.no_grad(), record_layers(model, tmp_path / "d", residual_fp32=True):
        model(ids())
    read = only_pass(tmp_path / "d")
    assert same_bits(read["module.layers.1.residual_fp32"], read["boundary.2"].float() + 2.0**-20)


def test_no_residual_no_unrounded_sum(tmp_path: Path) -> None:
    model = small()
    with (
        pytest.raises(RecordError, match="block 0 returns neither a residual"),
        record_layers(model, tmp_path / "d", residual_fp32=True),
    ):
        model(ids())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fingerprint_mode_stores_the_fingerprints_of_full_mode(dtype: torch.dtype, tmp_path: Path) -> None:
    model = llama(dtype)
    for mode in ("full", "fingerprint", "both"):
        with torch.no_grad(), record_layers(model, tmp_path / mode, mode=mode, modules=["*.mlp"]):  # type: ignore[arg-type]
            model(ids())
    full, marks = only_pass(tmp_path / "full"), only_pass(tmp_path / "fingerprint")
    assert full.keys == marks.keys == only_pass(tmp_path / "both").keys
    for key in full.keys:
        assert marks.raw[key].spec.fingerprint
        assert marks.raw[key].spec.shape == full.raw[key].spec.shape
        assert (fingerprint_rows(full.raw[key].data) == marks.raw[key].data).all(), key


def test_rows_padding_positions_and_decode_steps(tmp_path: Path) -> None:
    model = llama()
    mask = torch.ones_like(ids())
    mask[0, :2] = 0
    with torch.no_grad(), record_layers(model, tmp_path / "d", layers=[0]):
        first = model(ids(), attention_mask=mask, use_cache=True)
        for step in range(2):
            mask = torch.cat([mask, mask.new_ones(2, 1)], dim=1)
            model(ids(2, 1, seed=step), attention_mask=mask, past_key_values=first.past_key_values)
    prefill, one, two = read_passes(tmp_path / "d")
    assert prefill.rows.tokens.tolist() == ids().flatten().tolist()
    assert prefill.rows.kinds.tolist() == [2, 2, 0, 0, 0] + [0] * 5
    assert prefill.rows.requests.tolist() == [-1, -1, 0, 0, 0] + [1] * 5
    assert prefill.rows.positions.tolist()[2:] == [0, 1, 2, 0, 1, 2, 3, 4]
    assert prefill.rows.request_ids == one.rows.request_ids == two.rows.request_ids == ("pass0/0", "pass0/1")
    assert one.rows.kinds.tolist() == [1, 1]
    assert (one.rows.positions.tolist(), two.rows.positions.tolist()) == ([3, 5], [4, 6])


def test_requests_may_be_named_and_two_prompts_get_two_names(tmp_path: Path) -> None:
    model = small()
    with torch.no_grad(), record_layers(model, tmp_path / "d", requests=lambda: ["left", "right"]):
        model(ids())
    assert only_pass(tmp_path / "d").rows.request_ids == ("left", "right")
    with torch.no_grad(), record_layers(model, tmp_path / "e"):
        model(ids())
        model(ids())
    assert [read.rows.request_ids for read in read_passes(tmp_path / "e")] == [("pass0/0", "pass0/1"), ("pass1/0", "pass1/1")]


def test_the_manifest_says_what_ran(tmp_path: Path) -> None:
    with torch.no_grad(), record_layers(small(), tmp_path / "d", facts={"name": "small"}) as recording:
        recording._followers[0]._model(ids())
    manifest = read_manifest(tmp_path / "d")
    assert manifest.model == {"class": "Embedded", "num_layers": 3, "name": "small"}
    assert (manifest.device, manifest.arch) == ("cpu", "cpu")
    assert manifest.versions["torch"] == torch.__version__
    assert (tmp_path / "d" / "rank00000" / "end.json").exists()
    assert recording.stats.kept_up
    assert recording.stats.passes == 1

"""Recording SGLang's own models through its own `--forward-hooks`, and comparing that with transformers' models, row by row."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from transformers import AutoModelForCausalLM

from specalign.compare.coverage import Expect
from specalign.compare.layerwise import compare_dumps
from specalign.compare.modes import BITS, Mode
from specalign.compare.result import CompareReport
from specalign.dump import open_dump, validate
from specalign.integrations.sglang_place import place
from specalign.recorder import RecordError, record_layers
from tests.conformance.sglang_cpu import serving
from tests.conformance.sglang_cpu.draft import HEAD, make_head, random_weights
from tests.conformance.sglang_cpu.serving import PROMPTS, STEPS, Edit, Row, Scheduler, Specs, recorded, rows_of_serve, serve
from tests.conformance.sglang_cpu.targets import LAYERS, Target, gpt_oss_config, llama_config, make_target
from tests.unit.recorder.dumps import ReadPass, read_passes, same_bits

N: Final = LAYERS
TOLERANCE: Final = 1e-5
WITHIN: Final = Mode("abs", TOLERANCE)
CONFIGS: Final[dict[str, Any]] = {"llama": llama_config, "gpt_oss": gpt_oss_config}
PROMPT_ROWS: Final = sum(map(len, PROMPTS.values()))
CAPTURED: Final = {"llama": {0: 1, 3: 4, N - 2: N - 1}, "gpt_oss": {1: 1, 4: 4, N: N}}
"""Ids that the engine's setter takes, and the boundaries that it makes of them."""

BOUNDARIES: Final = [f"boundary.{b}" for b in range(N + 1)]
MODULES: Final = ("self_attn", "mlp")
KEYS: Final = {*BOUNDARIES, "post_norm", *(f"module.layers.{i}.{name}" for i in range(N) for name in MODULES)}


@pytest.fixture(autouse=True, scope="module")
def signals() -> Iterator[None]:
    """A recording turns SIGTERM into an exit, which is for servers."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@dataclasses.dataclass(frozen=True)
class Served:
    """A target that was served and recorded.

    Attributes:
        engine, model: SGLang's model and transformers', of the same weights.
        dump: what was recorded of SGLang's.
        tokens: of each request, the last one of which was made and not run.
        captured: what the engine captured by itself: one tensor `[rows, hidden]` for each forward and boundary.
    """

    engine: Any
    model: Any
    dump: Path
    tokens: Mapping[str, list[int]]
    captured: list[dict[str, torch.Tensor]]

    @functools.cached_property
    def truth(self) -> dict[str, dict[str, torch.Tensor]]:
        """Key → request → what transformers' modules return for all of its tokens at once, fp32 `[tokens, hidden]`."""
        found: dict[str, dict[str, torch.Tensor]] = {key: {} for key in (*BOUNDARIES, "post_norm")}
        inner = self.model.model
        outputs: list[torch.Tensor] = []
        modules = (inner.embed_tokens, *inner.layers, inner.norm)
        hooks = [module.register_forward_hook(lambda _, __, output: outputs.append(output[0].clone())) for module in modules]
        for rid, tokens in self.tokens.items():
            outputs.clear()
            with torch.no_grad():
                self.model(input_ids=torch.tensor([tokens]), use_cache=False)
            for key, output in zip(found, outputs, strict=True):
                found[key][rid] = output
        for hook in hooks:
            hook.remove()
        return found


@pytest.fixture(scope="module", params=CONFIGS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    family, folder = request.param, tmp_path_factory.mktemp(request.param)
    target: Target = make_target(CONFIGS[family](), folder / "checkpoint")
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "checkpoint", attn_implementation="eager", dtype=torch.float32)
    target.engine.set_eagle3_layers_to_capture(list(CAPTURED[family]))
    with recorded(target.engine, into=folder / "dump", modules=MODULES):
        scheduler, outputs = serve(target.engine)
    keys = [f"boundary.{b}" for b in CAPTURED[family].values()]
    captured = [dict(zip(keys, output.hidden_states.chunk(len(keys), dim=-1), strict=True)) for output in outputs]
    return Served(target.engine, model.eval(), folder / "dump", scheduler.tokens, captured)


@pytest.fixture
def head() -> Any:
    return make_head(HEAD, random_weights(HEAD))


def rows(read: ReadPass) -> list[Row]:
    columns = (read.rows.requests, read.rows.positions, read.rows.tokens, read.rows.kinds)
    return [(read.rows.request_ids[r], p, t, k) for r, p, t, k in zip(*(column.tolist() for column in columns), strict=True)]


def wrong_keys(passes: Sequence[ReadPass], truth: Mapping[str, Mapping[str, torch.Tensor]]) -> set[str]:
    """Keys under which a row is not what transformers' model gives for that position of that request."""
    wrong = set()
    for read in passes:
        for key, values in truth.items():
            wanted = torch.stack([values[rid][position] for rid, position, *_ in rows(read)])
            if not ((read[key] - wanted).abs() <= TOLERANCE).all():
                wrong.add(key)
    return wrong


def generate(model: Any, into: Path, new_tokens: int = STEPS) -> list[list[int]]:
    """transformers' model, recorded while it generates for both prompts in one padded batch; the tokens without padding."""
    longest = max(map(len, PROMPTS.values()))
    padding = [longest - len(prompt) for prompt in PROMPTS.values()]
    tokens = torch.tensor([[0] * pad + prompt for pad, prompt in zip(padding, PROMPTS.values(), strict=True)])
    mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding])
    options = {"max_new_tokens": new_tokens, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with record_layers(model, into, modules=[f"*.{name}" for name in MODULES], post_norm=True):
        made = model.generate(tokens, attention_mask=mask, **options)
    return [row[pad:] for row, pad in zip(made.tolist(), padding, strict=True)]


def compared(a: Path, b: Path, mode: Mode = BITS, expect: Expect = "both") -> CompareReport:
    return compare_dumps(open_dump(a), open_dump(b), mode=mode, expect=expect)


def test_every_boundary_of_every_row_is_what_transformers_computes(served: Served) -> None:
    passes = read_passes(served.dump)
    assert len(passes) == 2 + STEPS
    assert all(read.keys == KEYS for read in passes)
    assert wrong_keys(passes, served.truth) == set()


def test_another_boundary_and_hidden_without_its_residual_would_be_seen(served: Served, tmp_path: Path) -> None:
    alone: list[torch.Tensor] = []
    with recorded(served.engine, into=tmp_path / "dump", edit=serving.exchanged):
        served.engine.model.layers[1].register_forward_hook(lambda _, __, output: alone.append(output.clone()))
        serve(served.engine)
    assert wrong_keys(read_passes(tmp_path / "dump"), served.truth) == {"boundary.3", "boundary.6"}
    assert (alone[0][:12] - served.truth["boundary.2"]["a"][:12]).abs().max() > 0.1


def test_boundaries_are_bit_for_bit_those_that_the_engine_captures_itself(served: Served) -> None:
    for read, captured in zip(read_passes(served.dump), served.captured, strict=True):
        assert {key for key, state in captured.items() if not same_bits(read[key], state)} == set()
        assert not same_bits(read["boundary.3"], captured["boundary.4"])


def test_rows_name_request_position_and_token_of_prefill_chunk_and_decode(served: Served) -> None:
    assert [rows(read) for read in read_passes(served.dump)] == rows_of_serve(served.tokens)


def test_a_batch_that_mixes_up_its_requests_is_told(served: Served, tmp_path: Path) -> None:
    with recorded(served.engine, into=tmp_path / "dump", modules=MODULES):
        scheduler = Scheduler(served.engine, PROMPTS)
        scheduler.extend(a=12, b=7)
        scheduler.decode("a", "b", called=("b", "a"))
    assert rows(read_passes(tmp_path / "dump")[1]) != rows_of_serve(served.tokens)[2]
    report = compared(tmp_path / "dump", served.dump, WITHIN)
    assert not report.ok
    assert "contradicting-tokens" in {problem.code for problem in report.problems}


def test_a_verify_pass_holds_what_plain_decode_steps_hold(served: Served, tmp_path: Path) -> None:
    with recorded(served.engine, into=tmp_path / "dump", modules=MODULES):
        scheduler = Scheduler(served.engine, served.tokens)
        scheduler.extend(a=12, b=7)
        scheduler.verify("a", "b", count=3)
    verified = rows(read_passes(tmp_path / "dump")[1])
    assert sorted(verified) == sorted(row for step in rows_of_serve(served.tokens)[2:5] for row in step)
    report = compared(tmp_path / "dump", served.dump, WITHIN, expect="a")
    assert report.ok, report.format()
    assert {key.rows_compared for key in report.keys} == {PROMPT_ROWS + 6}


def test_the_dump_is_whole_and_one_flipped_bit_is_told(served: Served, tmp_path: Path) -> None:
    report = validate(served.dump)
    assert not report.problems, report.format()
    assert (report.ranks, report.passes, report.rows) == (1, 2 + STEPS, PROMPT_ROWS + 2 * STEPS)
    shutil.copytree(served.dump, tmp_path / "dump")
    damaged = sorted((tmp_path / "dump").glob("rank*/pass*"))[1]
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    assert [problem.code for problem in validate(tmp_path / "dump").problems] == ["data"]


def test_both_engines_agree_and_every_row_is_accounted_for(served: Served, tmp_path: Path) -> None:
    assert generate(served.model, tmp_path / "dump") == [tokens[:-1] for tokens in served.tokens.values()]
    report = compared(served.dump, tmp_path / "dump", WITHIN)
    both = PROMPT_ROWS + 2 * (STEPS - 1)
    assert report.ok, report.format()
    assert {key.key for key in report.keys} == KEYS
    assert {(key.rows_expected, key.rows_compared) for key in report.keys} == {(both, both)}
    matches = {(match.request_a, match.request_b, match.rows, match.how) for match in report.requests}
    assert matches == {("a", "pass0/0", 11 + STEPS, "tokens"), ("b", "pass0/1", 6 + STEPS, "tokens")}
    # transformers does not run the last token that it makes, and pads the shorter prompt
    assert (report.a.compared, report.a.terminal, report.a.missing, report.a.padding) == (both, 2, 0, 0)
    assert (report.b.compared, report.b.terminal, report.b.missing, report.b.padding) == (both, 0, 0, 5)


def test_a_changed_weight_is_found_at_its_layer_and_steps_that_never_ran_are_missing(served: Served, tmp_path: Path) -> None:
    generate(served.model, tmp_path / "short", new_tokens=1)
    report = compared(served.dump, tmp_path / "short", WITHIN)
    assert ([problem.code for problem in report.problems], report.first) == (["rows-missing"], None)
    assert (report.a.compared, report.a.missing, report.a.terminal) == (PROMPT_ROWS, 2 * STEPS, 0)
    assert compared(served.dump, tmp_path / "short", WITHIN, expect="b").ok
    changed = copy.deepcopy(served.model)
    with torch.no_grad():
        changed.model.layers[5].input_layernorm.weight *= 1.01
    generate(changed, tmp_path / "changed", new_tokens=1)
    report = compared(served.dump, tmp_path / "changed", WITHIN, expect="b")
    assert report.first is not None
    assert (report.first.layer, report.last_equal) == (5, "boundary.5")


@pytest.mark.parametrize(
    ("edit", "cause", "first"),
    [(serving.shifted, "boundary-shifted", "boundary.0"), (serving.normed, "post-norm", f"boundary.{N}")],
)
def test_a_state_taken_elsewhere_is_explained(served: Served, edit: Edit, cause: str, first: str, tmp_path: Path) -> None:
    with recorded(served.engine, into=tmp_path / "dump", modules=MODULES, edit=edit):
        serve(served.engine)
    report = compared(served.dump, tmp_path / "dump")
    assert report.first is not None
    assert report.explanation is not None
    assert (report.first.key, report.explanation.cause, report.explanation.fits) == (first, cause, PROMPT_ROWS + 2 * STEPS)
    generate(served.model, tmp_path / "transformers")
    across = compared(tmp_path / "dump", tmp_path / "transformers", WITHIN)
    assert across.first is not None
    assert across.first.key == first
    assert across.explanation is None  # two engines round differently, and explanations look for the same bits


@pytest.mark.parametrize(("edit", "wrong"), [(list, set()), (serving.exchanged, {"boundary.3", "boundary.6"})])
def test_fingerprints_tell_the_same_bits_from_others(served: Served, edit: Edit, wrong: set[str], tmp_path: Path) -> None:
    with recorded(served.engine, into=tmp_path / "dump", modules=MODULES, mode="fingerprint", edit=edit):
        serve(served.engine)
    report = compared(served.dump, tmp_path / "dump")
    assert all(key.fingerprint for key in report.keys)
    assert report.ok is not bool(wrong)
    assert {key.key for key in report.keys if not key.ok} == wrong


def test_target_and_draft_of_one_server_go_into_dumps_of_their_own(served: Served, head: Any, tmp_path: Path) -> None:
    with recorded(served.engine, head, into=tmp_path / "dump", model="both"):
        tokens, outputs = serving.draft_after(served.engine, head)
    own, drafted = read_passes(tmp_path / "dump"), read_passes(tmp_path / "dump.draft")
    assert wrong_keys(own, served.truth) == set()
    assert [rows(read) for read in own] == [[("a", p, tokens[p], 0) for p in range(12)], [("a", 12, tokens[12], 1)]]
    # at every position the head reads the token behind the target's
    assert [rows(read) for read in drafted] == [[("a", p, tokens[p + 1], 0) for p in range(12)], [("a", 12, tokens[13], 1)]]
    for read, output in zip(drafted, outputs, strict=True):
        assert read.keys == {"boundary.0", "boundary.1", "post_norm"}
        assert same_bits(read["boundary.0"], head.model.embed_tokens(torch.tensor(read.rows.tokens)))
        assert same_bits(read["boundary.1"], output.hidden_states)
        logits = torch.nn.functional.linear(read["post_norm"][-1:], head.lm_head.weight)
        torch.testing.assert_close(logits, output.next_token_logits, rtol=0, atol=TOLERANCE)
    for folder, role in (("dump", "target"), ("dump.draft", "draft")):
        assert not validate(tmp_path / folder).problems
        assert open_dump(tmp_path / folder).manifest.model["role"] == role


def test_a_draft_is_left_alone_unless_asked_for_and_must_not_come_first(served: Served, head: Any, tmp_path: Path) -> None:
    with recorded(served.engine, head, into=tmp_path / "dump"):
        assert not any(module._forward_hooks for module in head.modules())
        serving.draft_after(served.engine, head)
    assert len(read_passes(tmp_path / "dump")) == 2
    assert not (tmp_path / "dump.draft").exists()
    turned = recorded(head, served.engine, into=tmp_path / "turned", model="both")
    with turned, pytest.raises(RecordError, match="of the draft model got a ForwardBatch of the other one"):
        serving.draft_after(served.engine, head)


def test_a_name_that_no_module_has_is_told_at_the_first_forward(served: Served, tmp_path: Path) -> None:
    def longer(specs: Specs) -> Specs:
        odd = f"model.layers.{N}"
        return [specs[0] | {"target_modules": [odd], "config": specs[0]["config"] | {"name": odd, "key": "boundary.9"}}, *specs]

    with (
        recorded(served.engine, into=tmp_path / "dump", edit=longer),
        pytest.raises(RecordError, match=f"layers.{N} did not run"),
    ):
        serve(served.engine)


def test_residual_sums_are_the_boundaries_where_nothing_is_rounded(served: Served, tmp_path: Path) -> None:
    with recorded(served.engine, into=tmp_path / "dump", residual_fp32=True):
        serve(served.engine)
    for read in read_passes(tmp_path / "dump"):
        assert all(same_bits(read[f"module.layers.{i}.residual_fp32"], read[f"boundary.{i + 1}"]) for i in range(N))


GRAPHS: Final = (
    pytest.param("", False, id="default"),
    pytest.param("--disable-cuda-graph", True),
    pytest.param("--disable-cuda-graph --cuda-graph-backend-decode=full", False),
    pytest.param("--disable-decode-cuda-graph --disable-prefill-cuda-graph", True),
    pytest.param("--cuda-graph-backend-decode=disabled --cuda-graph-backend-prefill=disabled", True),
)
"""Flags of a server, and whether it runs without CUDA graphs."""


@pytest.mark.parametrize(("flags", "off"), GRAPHS)
def test_a_server_is_refused_exactly_if_it_replays_graphs(flags: str, off: bool, tmp_path: Path) -> None:
    given = ("--attention-backend=triton", *flags.split())
    assert serving.graphs_are_off(tmp_path / "asked", *given) is off
    refused: contextlib.AbstractContextManager[Any] = pytest.raises(RecordError, match="runs CUDA graphs")
    with contextlib.nullcontext() if off else refused, recorded(torch.nn.Module(), into=tmp_path / "dump", flags=given):
        pass


def test_ranks_of_dp_attention_are_those_of_the_server(tmp_path: Path) -> None:
    with serving.settings(tmp_path, "--tp-size=2", "--dp-size=2", "--enable-dp-attention", rank=1):
        assert place() == (1, 2, {"tp": (0, 1), "pp": (0, 1), "dp": (1, 2)})

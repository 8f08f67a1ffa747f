"""The factory for SGLang's --forward-hooks, with modules and batches that behave like SGLang's."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.capture import refusals
from specalign.integrations import sglang
from specalign.integrations.sglang import close_all, forward_hooks_json, record_layers
from specalign.integrations.sglang_place import place
from specalign.recorder import RecordError
from specalign.recorder.sglang_rows import forward_batch_rows
from tests.unit.recorder.dumps import ReadPass, only_pass, read_passes, same_bits
from tests.unit.recorder.stand_ins import (
    EagleDraftInput,
    EagleVerifyInput,
    ForwardMode,
    SglangModel,
    forward_batch,
    register_forward_hooks,
)

LAYERS = 3
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
    try:
        close_all()
    except RecordError:
        close_all()


def hooked(module: SglangModel, folder: Path, /, **options: Any) -> SglangModel:
    specs = json.loads(forward_hooks_json(LAYERS, str(folder), **options))
    register_forward_hooks(module, specs, lambda path: {sglang.FACTORY: record_layers}[path])
    return module


def check(read: ReadPass, truth: dict[str, torch.Tensor], keys: set[str]) -> None:
    assert read.keys == keys
    for key in keys:
        assert same_bits(read[key], truth[key]), key


BOUNDARIES = {f"boundary.{b}" for b in range(LAYERS + 1)}


def test_prefill_and_decode_of_two_requests(tmp_path: Path) -> None:
    model = hooked(SglangModel(), tmp_path / "d", modules=["mlp"], residual_fp32=True)
    prefill = forward_batch(ForwardMode.EXTEND, [3, 2], [0, 4], ["a", "b"])  # 4 tokens of b were in the prefix cache
    decode = forward_batch(ForwardMode.DECODE, [1, 1], [3, 6], ["a", "b"])
    model.run(prefill)
    model.run(decode)
    close_all()
    keys = BOUNDARIES | {"post_norm"} | {f"module.layers.{i}.{name}" for i in range(LAYERS) for name in ("mlp", "residual_fp32")}
    plain = SglangModel()
    one, two = read_passes(tmp_path / "d")
    check(one, plain.truth(prefill), keys)
    check(two, plain.truth(decode), keys)
    assert one.rows.tokens.tolist() == prefill.input_ids.tolist()
    assert one.rows.positions.tolist() == [0, 1, 2, 4, 5]
    assert one.rows.requests.tolist() == [0, 0, 0, 1, 1]
    assert one.rows.request_ids == two.rows.request_ids == ("a", "b")
    assert (one.rows.kinds.tolist(), two.rows.kinds.tolist()) == ([0] * 5, [1, 1])
    assert one.info.stage == (0, LAYERS)
    assert (tmp_path / "d" / "rank00000" / "end.json").exists()


def test_fingerprints_only(tmp_path: Path) -> None:
    from specalign.dump.fingerprint import fingerprint_rows

    batch = forward_batch(ForwardMode.EXTEND, [5], [0], ["a"])
    for mode in ("full", "fingerprint"):
        hooked(SglangModel(), tmp_path / mode, mode=mode).run(batch)
    close_all()
    full, marks = only_pass(tmp_path / "full"), only_pass(tmp_path / "fingerprint")
    assert full.keys == marks.keys
    assert all((fingerprint_rows(full.raw[key].data) == marks.raw[key].data).all() for key in full.keys)


def test_health_checks_padding_and_idle_batches(tmp_path: Path) -> None:
    model = hooked(SglangModel(), tmp_path / "d")
    batch = forward_batch(ForwardMode.EXTEND, [2, 1], [0, 0], ["a", "HEALTH_CHECK_17"])
    batch.input_ids = torch.cat([batch.input_ids, batch.input_ids.new_zeros(2)])
    batch.positions = torch.cat([batch.positions, batch.positions.new_zeros(2)])
    model.run(batch)
    model.run(forward_batch(ForwardMode.IDLE, [], [], []))
    close_all()
    one, idle = read_passes(tmp_path / "d")
    assert one.rows.kinds.tolist() == [0, 0, 3, 2, 2]
    assert one.rows.requests.tolist() == [0, 0, 1, -1, -1]
    assert len(idle.rows) == 0


def test_warm_up_without_request_ids_is_passed_over(tmp_path: Path) -> None:
    model = hooked(SglangModel(), tmp_path / "d")
    model.run(forward_batch(ForwardMode.EXTEND, [4], [0], None))
    model.run(forward_batch(ForwardMode.EXTEND, [2], [0], ["a"]))
    close_all()
    assert only_pass(tmp_path / "d").rows.request_ids == ("a",)


def test_target_and_draft_with_the_same_module_names_go_apart(tmp_path: Path) -> None:
    target, draft = SglangModel(seed=1), SglangModel(seed=2)
    for model in (target, draft):  # SGLang registers the same specs on each runner's model
        hooked(model, tmp_path / "d", model="both")
    prefill = forward_batch(ForwardMode.EXTEND, [3], [0], ["a"])
    target.run(prefill)
    extend = forward_batch(ForwardMode.EXTEND, [3], [0], ["a"], spec_info=EagleDraftInput(topk_p=None))
    draft.run(extend)
    step = forward_batch(ForwardMode.DECODE, [1], [3], ["a"], spec_info=EagleDraftInput(topk_p=torch.ones(1, 1)))
    draft.run(step)
    verify = forward_batch(ForwardMode.TARGET_VERIFY, [3], [3], ["a"], spec_info=EagleVerifyInput(draft_token_num=3))
    target.run(verify)
    close_all()
    keys = BOUNDARIES | {"post_norm"}
    one, two = read_passes(tmp_path / "d")
    check(one, SglangModel(seed=1).truth(prefill), keys)
    check(two, SglangModel(seed=1).truth(verify), keys)
    assert two.rows.kinds.tolist() == [1, 1, 1]
    first, second = read_passes(tmp_path / "d.draft")
    check(first, SglangModel(seed=2).truth(extend), keys)
    check(second, SglangModel(seed=2).truth(step), keys)


def test_the_draft_is_left_alone_unless_asked_for(tmp_path: Path) -> None:
    target, draft = SglangModel(seed=1), SglangModel(seed=2)
    for model in (target, draft):
        hooked(model, tmp_path / "d")
    assert not any(module._forward_hooks for module in draft.modules())
    target.run(forward_batch(ForwardMode.EXTEND, [3], [0], ["a"]))
    close_all()
    assert len(read_passes(tmp_path / "d")) == 1
    assert not (tmp_path / "d.draft").exists()


def test_a_batch_of_the_other_model_is_an_error(tmp_path: Path) -> None:
    model = hooked(SglangModel(), tmp_path / "d")
    with pytest.raises(RecordError, match="a hook of the target model got a ForwardBatch of the other one"):
        model.run(forward_batch(ForwardMode.EXTEND, [3], [0], ["a"], spec_info=EagleDraftInput()))


def test_without_an_end_a_pass_is_over_when_its_first_module_runs_again(tmp_path: Path) -> None:
    model = SglangModel()
    for name in ("model.embed_tokens", "model.layers.0", "model.layers.1"):
        spec = {"target_modules": [name], "hook_factory": "x", "config": {"name": name, "folder": str(tmp_path / "d")}}
        register_forward_hooks(model, [spec], lambda path: record_layers)
    batches = [forward_batch(ForwardMode.EXTEND, [3], [0], ["a"]), forward_batch(ForwardMode.DECODE, [1], [3], ["a"])]
    for batch in batches:
        model.run(batch)
    assert len(list((tmp_path / "d" / "rank00000").glob("pass*"))) <= 1  # the last one is still open
    close_all()
    for read, batch in zip(read_passes(tmp_path / "d"), batches, strict=True):
        check(read, SglangModel().truth(batch), {"boundary.0", "boundary.1", "boundary.2"})


@pytest.mark.parametrize("cut", [False, True])
def test_at_exit_the_open_pass_is_written_if_it_is_whole(cut: bool, tmp_path: Path) -> None:
    model = SglangModel()
    for name in ("model.embed_tokens", "model.layers.0", "model.layers.1"):
        hook = record_layers({"name": name, "folder": str(tmp_path / "d")})
        model.get_submodule(name).register_forward_hook(hook)
    if cut:
        model.model.layers[1].register_forward_pre_hook(lambda module, args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.run(forward_batch(ForwardMode.EXTEND, [3], [0], ["a"]))
    else:
        model.run(forward_batch(ForwardMode.EXTEND, [3], [0], ["a"]))
    close_all()
    assert len(read_passes(tmp_path / "d")) == (not cut)
    assert (tmp_path / "d" / "rank00000" / "end.json").exists() is not cut


def test_a_partial_sum_is_refused(tmp_path: Path) -> None:
    for mode in ("full", "fingerprint"):
        model = SglangModel()
        model.model.layers[1].mlp.register_forward_hook(
            lambda module, args, output: setattr(output, "_sglang_needs_allreduce_fusion", True)
        )
        hooked(model, tmp_path / mode, mode=mode)
        with pytest.raises(ValueError, match="is a partial sum"):
            model.run(forward_batch(ForwardMode.EXTEND, [3], [0], ["a"]))


def test_a_name_that_no_module_has_is_found_at_the_first_forward(tmp_path: Path) -> None:
    specs = json.loads(forward_hooks_json(LAYERS + 1, str(tmp_path / "d")))
    model = SglangModel()
    register_forward_hooks(model, specs, lambda path: record_layers)
    with pytest.raises(RecordError, match=r"model.layers.3 did not run \(1 of 7 hooks\)"):
        model.run(forward_batch(ForwardMode.EXTEND, [3], [0], ["a"]))
    close_all()
    assert not (tmp_path / "d" / "rank00000" / "end.json").exists()


def test_a_forward_in_which_a_module_did_not_run_is_an_error(tmp_path: Path) -> None:
    model = hooked(SglangModel(), tmp_path / "d")
    model.run(forward_batch(ForwardMode.EXTEND, [3], [0], ["a"]))
    del model.model.layers[2]
    with pytest.raises(RecordError, match=r"model.layers.2 ran in some forwards and not in others"):
        model.run(forward_batch(ForwardMode.EXTEND, [3], [0], ["a"]))


def test_no_module_with_a_batch_no_rows(tmp_path: Path) -> None:
    model = SglangModel()
    config = {"name": "model.norm", "folder": str(tmp_path / "d")}
    model.model.norm.register_forward_hook(record_layers(config))
    model.run(forward_batch(ForwardMode.EXTEND, [3], [0], ["a"]))
    with pytest.raises(RecordError, match=r"none of model.norm gets a ForwardBatch"):
        model.run(forward_batch(ForwardMode.EXTEND, [3], [0], ["a"]))


@pytest.mark.parametrize("decode", ["full", "disabled"])
def test_a_server_with_cuda_graphs_is_refused_by_the_flag(decode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    phase = SimpleNamespace(backend=decode)
    args = SimpleNamespace(
        disable_cuda_graph=False, cuda_graph_config=SimpleNamespace(decode=phase, prefill=phase), model_path="m"
    )
    module = ModuleType("sglang.srt.server_args")
    module.get_global_server_args = lambda: args  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang.srt.server_args", module)
    config = {"name": "model.layers.0", "folder": str(tmp_path / "d")}
    if decode == "disabled":
        assert record_layers(config) is not None
        return
    with pytest.raises(RecordError, match="--disable-cuda-graph"):
        record_layers(config)


def test_a_graph_that_is_being_recorded_is_refused_by_the_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = hooked(SglangModel(), tmp_path / "d")
    monkeypatch.setattr(refusals, "_cuda_is_used", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RecordError, match="--disable-cuda-graph"):
        model.run(forward_batch(ForwardMode.EXTEND, [3], [0], ["a"]))


BAD = {
    "no folder": ({"name": "x"}, "holds name, folder"),
    "an unknown field": ({"name": "x", "folder": "f", "colour": 1}, r"not understood: \['colour'\]"),
    "a mode": ({"name": "x", "folder": "f", "mode": "half"}, "mode='half'"),
    "a number as text": ({"name": "x", "folder": "f", "num_layers": "3"}, "num_layers='3' is a str"),
}


@pytest.mark.parametrize(("config", "message"), BAD.values(), ids=BAD)
def test_bad_configs_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        record_layers(config)


def test_the_json_names_each_module_once() -> None:
    specs = json.loads(forward_hooks_json(2, "/d", layers=[1], modules=["mlp"], root="language_model.model"))
    assert [spec["target_modules"] for spec in specs] == [
        ["language_model.model.embed_tokens"],
        ["language_model.model.layers.1.mlp"],
        ["language_model.model.layers.1"],
        ["language_model.model.norm"],
        ["language_model.model"],
    ]
    assert all(spec["config"]["name"] == spec["target_modules"][0] for spec in specs)
    assert [spec["config"].get("key") for spec in specs] == ["boundary.0", "module.layers.1.mlp", "boundary.2", "post_norm", None]
    with pytest.raises(RecordError, match=r"layers \[2\]"):
        forward_hooks_json(2, "/d", layers=[2])


def test_ranks_come_from_sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    parallel = SimpleNamespace(tp_rank=3, tp_size=4, pp_rank=1, pp_size=2)
    context = ModuleType("sglang.srt.runtime_context")
    context.get_parallel = lambda: parallel  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)
    assert place() == (7, 8, {"tp": (3, 4), "pp": (1, 2)})
    parallel.attn_dp_rank, parallel.attn_dp_size = 1, 2
    assert place() == (7, 8, {"tp": (1, 2), "pp": (1, 2), "dp": (1, 2)})


def test_a_verified_tree_may_hold_a_position_twice_and_a_version_without_rids_is_named() -> None:
    batch = forward_batch(ForwardMode.TARGET_VERIFY, [3], [3], ["a"], spec_info=EagleVerifyInput(draft_token_num=3))
    rows = forward_batch_rows(batch)
    assert rows is not None
    assert rows.repeats
    del batch.rids
    with pytest.raises(RecordError, match=r"0.5.16 or newer"):
        forward_batch_rows(batch)
    short = forward_batch(ForwardMode.EXTEND, [3], [0], ["a"], extend_seq_lens_cpu=[4])
    with pytest.raises(RecordError, match=r"has 3 rows, and its 1 requests have \[4\]"):
        forward_batch_rows(short)


SERVER = """
import multiprocessing, os, signal, sys
from pathlib import Path
from tests.unit.recorder.test_sglang import *


def scheduler(folder, how, ready):
    model = hooked(SglangModel(), folder)
    model.run(forward_batch(ForwardMode.EXTEND, [3], [0], ["a"]))
    if how == "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=scheduler, args=(Path(sys.argv[1]), sys.argv[2], None))
    child.start()
    child.join()
"""


@pytest.mark.parametrize("how", ["returns", "terminated"])
def test_a_scheduler_process_that_ends_leaves_a_whole_dump(how: str, tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(SERVER)
    env = {"PYTHONPATH": f"{ROOT / 'impl'}:{ROOT}", "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, tmp_path / "server.py", tmp_path / "d", how], env=env, check=True, timeout=120)
    assert only_pass(tmp_path / "d").rows.request_ids == ("a",)
    assert (tmp_path / "d" / "rank00000" / "end.json").exists()

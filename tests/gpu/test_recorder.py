"""Recording on a GPU: the bits that a blocking copy sees, whatever the model does next, and the same refusals as on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor, nn  # noqa: E402

from specalign.capture import CaptureError  # noqa: E402
from specalign.dump.fingerprint import fingerprint_rows  # noqa: E402
from specalign.dump.writer import DumpWriter  # noqa: E402
from specalign.recorder import RecordError, record_layers  # noqa: E402
from tests.unit.models.tiny import tiny  # noqa: E402
from tests.unit.recorder.dumps import AddsInPlace, Block, Embedded, ids, only_pass, read_passes, same_bits  # noqa: E402

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
WIDTH, TOKENS, DEPTH = 2880, 2048, 8


def adding_in_place(dtype: torch.dtype = torch.bfloat16) -> Embedded:
    """Every block writes over what the block before it returned, at once and with nothing in between."""
    torch.manual_seed(0)
    model = Embedded([AddsInPlace(2.0**-place) for place in range(DEPTH)], width=WIDTH)
    return model.to("cuda", dtype).eval()


def blocking(model: Embedded) -> tuple[list[Any], list[list[Tensor]]]:
    """Plain hooks that wait for each copy: what the recorder must have seen."""
    forwards: list[list[Tensor]] = []
    handles = [model.register_forward_pre_hook(lambda module, args: forwards.append([]))]
    for layer in model.layers:
        handles.append(
            layer.register_forward_hook(lambda module, args, output: forwards[-1].append(output.detach().cpu().clone()))
        )
    return handles, forwards


def one_pass(dtype: torch.dtype) -> int:
    return TOKENS * ((DEPTH + 1) * WIDTH * dtype.itemsize + 21)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pending", ["wide", "tiny"])
def test_what_was_recorded_is_what_a_blocking_copy_saw(dtype: torch.dtype, pending: str, tmp_path: Path) -> None:
    model = adding_in_place(dtype)
    limit = 4 << 30 if pending == "wide" else one_pass(dtype) + 4096
    with torch.no_grad():
        with record_layers(model, tmp_path / "d", max_pending_bytes=limit) as recording:
            for seed in range(4):
                model(ids(1, TOKENS, seed=seed).cuda())
        handles, forwards = blocking(model)
        for seed in range(4):
            model(ids(1, TOKENS, seed=seed).cuda())
        for handle in handles:
            handle.remove()
    reads = read_passes(tmp_path / "d")
    assert len(reads) == 4
    for read, forward in zip(reads, forwards, strict=True):
        for place, tensor in enumerate(forward):
            assert same_bits(read[f"boundary.{place + 1}"], tensor[0]), (read.info.number, place)
    assert recording.stats.peak_pending_bytes <= limit


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fingerprints_are_those_of_the_recorded_values(dtype: torch.dtype, tmp_path: Path) -> None:
    model = adding_in_place(dtype)
    for mode in ("full", "fingerprint", "both"):
        with torch.no_grad(), record_layers(model, tmp_path / mode, mode=mode):  # type: ignore[arg-type]
            model(ids(1, TOKENS).cuda())
    full, marks = only_pass(tmp_path / "full"), only_pass(tmp_path / "fingerprint")
    assert full.keys == marks.keys == only_pass(tmp_path / "both").keys
    for key in full.keys:
        assert (fingerprint_rows(full.raw[key].data) == marks.raw[key].data).all(), key


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_rows_are_found_without_reading_the_gpu(tmp_path: Path) -> None:
    model = Embedded([Block() for _ in range(3)]).cuda()
    tokens = ids(2, 7).cuda()
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    edges = torch.tensor([0, 3, 6], device="cuda")
    model(tokens)
    with torch.no_grad(), record_layers(model, tmp_path / "d", reserve_bytes=1 << 20):
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            model(tokens, mask)
            model(tokens[:1], cu_seqlens=edges)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    padded, packed = read_passes(tmp_path / "d")
    assert padded.rows.kinds.tolist() == [2] * 3 + [0] * 11
    assert packed.rows.requests.tolist() == [0, 0, 0, 1, 1, 1, -1]
    assert packed.rows.tokens.tolist() == tokens[0].tolist()


def test_our_gpt_oss_and_its_capture_agree(tmp_path: Path) -> None:
    model = tiny().to("cuda", torch.bfloat16)
    n = model.config.num_hidden_layers
    tokens = torch.randint(0, model.config.vocab_size, (2, 33), device="cuda")
    states = model(tokens, capture=tuple(range(n + 1))).states
    with torch.no_grad(), record_layers(model, tmp_path / "d", modules=["blocks.*.moe"]):
        model(tokens)
    read = only_pass(tmp_path / "d")
    for boundary, state in enumerate(states):
        assert same_bits(read[f"boundary.{boundary}"], state.flatten(0, 1).cpu()), boundary
    assert read["module.layers.1.moe"].shape == (66, 64)


def test_memory_on_the_gpu_is_given_back_and_page_locked_memory_is_used_again(tmp_path: Path) -> None:
    model = adding_in_place()
    tokens = ids(1, TOKENS).cuda()
    with torch.no_grad():
        model(tokens)
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        with record_layers(model, tmp_path / "d") as recording:
            for _ in range(3):
                model(tokens)
                recording.flush()
            held = recording._copier.host_bytes  # type: ignore[union-attr]
            for _ in range(3):
                model(tokens)
                recording.flush()
            assert recording._copier.host_bytes == held  # type: ignore[union-attr]
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() <= before
    assert held <= 2 * one_pass(torch.bfloat16) + (128 << 20)


def test_an_error_in_the_thread_reaches_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = adding_in_place()

    def full(*args: Any, **options: Any) -> int:
        raise OSError(28, "no space left")

    monkeypatch.setattr(DumpWriter, "write_pass", full)
    with pytest.raises(RecordError, match="no space left") as caught, torch.no_grad(), record_layers(model, tmp_path / "d"):
        model(ids(1, TOKENS).cuda())
    assert isinstance(caught.value.__cause__, OSError)
    assert all(not module._forward_hooks for module in model.modules())


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")  # torch says so of the capture that was broken off
def test_a_cuda_graph_is_refused_by_name(tmp_path: Path) -> None:
    model = Embedded([nn.Identity()]).cuda()
    static = ids(1, 4).cuda()
    model(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(CaptureError, match=r"(?i)cuda graph"),
        record_layers(model, tmp_path / "d"),
        torch.cuda.graph(graph),
    ):
        model(static)


def test_a_second_stream_is_waited_for(tmp_path: Path) -> None:
    model = adding_in_place()
    tokens = ids(1, TOKENS).cuda()
    stream = torch.cuda.Stream()
    with torch.no_grad(), record_layers(model, tmp_path / "d"):
        model(tokens)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            model(tokens)
        torch.cuda.current_stream().wait_stream(stream)
    one, other = read_passes(tmp_path / "d")
    assert all(same_bits(one[key], other[key]) for key in one.keys)

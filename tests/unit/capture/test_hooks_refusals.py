"""Where hooks do not run (compiled code, CUDA graphs, traces, replicas) capture is refused by name."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor, nn

from specalign.capture import CaptureError, capture_states, refusals
from specalign.layer_ids import POST_NORM
from tests.unit.capture.probes import BLOCKS, PlainBlock, Stack, Wrapped, start
from tests.unit.capture.refused import refused

# torch 2.11 warns about its own code when the compiler is loaded.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.:DeprecationWarning")


def test_a_compiled_model_is_refused() -> None:
    model = Wrapped(Stack())
    refused(torch.compile(model, backend="eager"), (1,), r"the model \(OptimizedModule\): torch.compile runs")


def test_a_model_compiled_in_place_is_refused() -> None:
    model = Wrapped(Stack())
    model.compile(backend="eager")
    refused(model, (1,), r"the model \(Wrapped\): torch.compile runs the model without the hooks")


def test_a_stack_compiled_in_place_is_refused() -> None:
    model = Wrapped(Stack())
    model.model.compile(backend="eager")
    refused(model, (1,), r"model \(Stack\): torch.compile")
    wrapping = Wrapped(torch.compile(Stack(), backend="eager"))
    refused(wrapping, (1,), r"model \(OptimizedModule\): torch.compile", blocks=wrapping.model._orig_mod.layers)


def test_a_block_compiled_in_place_is_refused() -> None:
    model = Wrapped(Stack())
    model.model.layers[3].compile(backend="eager")
    refused(model, (1,), r"model.layers.3 \(PlainBlock\): torch.compile")


@pytest.mark.parametrize("warm", [False, True])
def test_blocks_wrapped_by_torch_compile_are_supported(warm: bool) -> None:
    torch._dynamo.reset()
    model = Stack([torch.compile(PlainBlock(number), backend="eager") for number in range(BLOCKS)])
    with torch.no_grad():
        if warm:
            model(start())
        with capture_states(model, (6, 0, 3, POST_NORM)) as capture:
            model(start())
            model(start() + 1)
    assert [[t[0, 0].item() for t in forward.states] for forward in capture.forwards] == [[63, 0, 7, 63000], [64, 1, 8, 64000]]


def test_a_function_compiled_before_gives_no_states() -> None:
    torch._dynamo.reset()
    model = Stack()
    function = torch.compile(lambda hidden: model(hidden), backend="eager")
    with torch.no_grad():
        function(start())
        with capture_states(model, (1,)) as capture:
            function(start())
    with pytest.raises(CaptureError, match="a function compiled before"):
        _ = capture.states


def test_a_function_compiled_meanwhile_gives_right_states_or_none() -> None:
    torch._dynamo.reset()
    model = Stack()
    with torch.no_grad(), capture_states(model, (1, 6)) as capture:
        torch.compile(lambda hidden: model(hidden), backend="eager")(start())
    assert [tensor[0, 0].item() for tensor in capture.states] == [1, 63]
    torch._dynamo.reset()
    with torch.no_grad(), capture_states(model, (1, 6)) as capture:  # noqa: SIM117
        with pytest.raises(torch._dynamo.exc.Unsupported):
            torch.compile(lambda hidden: model(hidden), backend="eager", fullgraph=True)(start())
    with pytest.raises(CaptureError, match="no forward"):
        _ = capture.states


def test_recording_a_cuda_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    monkeypatch.setattr(refusals, "_cuda_is_used", lambda: True)
    recording = [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recording[0])
    with capture_states(model, (1,)) as capture:
        model(start())
        recording[0] = True
        with pytest.raises(CaptureError, match="a CUDA graph is being recorded"):
            model(start())
    assert len(capture.forwards) == 1
    with pytest.raises(CaptureError, match="a CUDA graph is being recorded"), capture_states(model, (1,)):
        pytest.fail("entered")


def test_a_megatron_cuda_graph_is_refused() -> None:
    model = Stack()
    model.layers[2].cudagraph_manager = object()  # type: ignore[assignment]
    refused(model, (1,), r"layers.2 \(PlainBlock\) runs as Megatron's CUDA graph")
    other = Stack()
    other.layers[0].cuda_graphs = []  # type: ignore[assignment]
    with capture_states(other, (1,)) as capture:
        other(start())
    assert capture.states[0][0, 0].item() == 1
    other.layers[0].cuda_graphs = [object()]  # type: ignore[assignment]
    refused(other, (1,), "CUDA graph")


def test_blocks_that_a_graph_replays_inside_the_model_are_missed_by_name() -> None:
    class Replays(Stack):
        def forward(self, hidden: Tensor) -> Tensor:
            return hidden

    refused(Replays(), (1,), r"0 of 6 blocks ran through their hooks \(block 0 did not\).*CUDA graph")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tracing_is_refused() -> None:
    model = Stack()
    with pytest.raises(CaptureError, match=r"traced by torch\.jit"), capture_states(model, (1,)):
        torch.jit.trace(model, (start(),))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_refused() -> None:
    traced = torch.jit.trace(Stack(), (start(),))
    refused(traced, (1,), "is a TorchScript module", blocks=list(traced.layers.children()))


def test_replicas_are_refused() -> None:
    refused(nn.DataParallel(Stack()), (1,), "DataParallel runs replicas in threads")

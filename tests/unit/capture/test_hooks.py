"""Capture from outside: every kind of model, several forwards, nesting, and hooks that are always removed."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor, nn

from specalign.capture import CaptureError, CapturePlan, Stage, StageLayout, capture_states
from specalign.layer_ids import POST_NORM
from tests.unit.capture.models import MODELS, GPTModel
from tests.unit.capture.probes import BLOCKS, PlainBlock, Stack, TimesThousand, start

ALL = (POST_NORM, *range(BLOCKS, -1, -1))
VALUES = [63000, 63, 31, 15, 7, 3, 1, 0]


def hook_count(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("mode", ["train", "no_grad", "inference_mode", "autocast"])
def test_every_state_is_what_the_closed_form_says(kind: str, mode: str) -> None:
    model = MODELS[kind]()
    contexts = {
        "train": torch.enable_grad,
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    }
    with contexts[mode](), capture_states(model, ALL) as capture:
        model(start())
    assert [tensor[0, 0].item() for tensor in capture.states] == VALUES
    assert not any(tensor.requires_grad or tensor.is_inference() for tensor in capture.states)
    assert [capture.forwards[0][state][0, 0].item() for state in ALL] == VALUES
    assert hook_count(model) == 0


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_runs_the_same_with_hooks(kind: str) -> None:
    model = MODELS[kind]()
    plain = model(start())
    with capture_states(model, ALL):
        assert torch.equal(model(start()), plain)


@pytest.mark.parametrize("states", [(6,), (0,), (3, 1), (POST_NORM,), (5, 6, 0)])
@pytest.mark.parametrize("kind", ["plain", "SGLang pair", "SGLang held", "Megatron"])
def test_only_what_is_asked_for_in_the_order_asked_for(kind: str, states: Any) -> None:
    model = MODELS[kind]()
    with capture_states(model, states) as capture:
        model(start())
    assert [tensor[0, 0].item() for tensor in capture.states] == [dict(zip(ALL, VALUES, strict=True))[s] for s in states]
    assert list(capture.forwards[0].captured) == list(CapturePlan(states, BLOCKS).wanted)


def test_a_plan_and_duplicates_are_taken() -> None:
    model = Stack()
    with (
        capture_states(model, CapturePlan((2, 2), BLOCKS, "keep")) as one,
        capture_states(model, (2, 2), duplicates="keep") as two,
    ):
        model(start())
    assert [tensor[0, 0].item() for tensor in (*one.states, *two.states)] == [3] * 4
    with pytest.raises(CaptureError, match="more than once"):
        capture_states(model, (2, 2))
    with pytest.raises(CaptureError, match="the plan is for 7 layers and the model has 6 blocks"):
        capture_states(model, CapturePlan((2,), 7))


@pytest.mark.parametrize("kind", ["plain", "SGLang pair", "SGLang held"])
@pytest.mark.parametrize("rows", [(0,), (2, 0)])
def test_an_idle_batch_gives_empty_states(kind: str, rows: tuple[int, ...]) -> None:
    model = MODELS[kind]()
    with capture_states(model, (6, 0, POST_NORM)) as capture:
        model(start(rows).bfloat16())
    assert [(tuple(tensor.shape), tensor.dtype) for tensor in capture.states] == [((*rows, 4), torch.bfloat16)] * 3


def test_an_idle_batch_whose_norm_is_skipped_has_an_empty_post_norm() -> None:
    class Skips(Stack):
        def forward(self, hidden: Tensor) -> Tensor:
            for layer in self.layers:
                hidden = layer(hidden)
            return hidden if hidden.shape[0] == 0 else self.norm(hidden)

    with capture_states(Skips(), (POST_NORM,)) as capture:
        capture._model(start((0,)))
    assert tuple(capture.states[0].shape) == (0, 4)


def test_several_forwards_are_kept_apart() -> None:
    model = Stack()
    with capture_states(model, (6, 0)) as capture:
        for value in (0.0, 100.0):
            model(start() + value)
        assert [[t[0, 0].item() for t in forward.states] for forward in capture.forwards] == [[63, 0], [163, 100]]
        with pytest.raises(CaptureError, match="2 forwards ran"):
            _ = capture.states
        capture.clear()
        model(start() + 7)
    assert [tensor[0, 0].item() for tensor in capture.states] == [70, 7]


def test_no_forward_is_no_result() -> None:
    with capture_states(Stack(), (6,)) as capture:
        pass
    for read in (lambda: capture.states, lambda: capture.forwards):
        with pytest.raises(CaptureError, match="no forward of the Stack was seen"):
            read()


def test_captures_of_one_model_may_nest_and_close_in_any_order() -> None:
    model = Stack()
    outer, inner = capture_states(model, (6,)), capture_states(model, (1, POST_NORM))
    outer.__enter__()
    inner.__enter__()
    model(start())
    outer.__exit__(None, None, None)
    model(start() + 1)
    inner.__exit__(None, None, None)
    assert len(outer.forwards) == 1
    assert [[t[0, 0].item() for t in forward.states] for forward in inner.forwards] == [[1, 63000], [2, 64000]]
    assert hook_count(model) == 0


def test_a_capture_is_entered_once() -> None:
    capture = capture_states(Stack(), (6,))
    with capture, pytest.raises(CaptureError, match="this capture is open"):
        capture.__enter__()
    with pytest.raises(CaptureError, match="this capture is closed"):
        capture.__enter__()


def test_hooks_are_removed_after_an_exception_and_the_next_forward_counts() -> None:
    model = Stack()
    model.norm = nn.LayerNorm(5)  # type: ignore[assignment]
    good = TimesThousand()
    with pytest.raises(RuntimeError, match="normalized_shape"), capture_states(model, (6,)) as capture:
        model(start())
    assert hook_count(model) == 0
    with pytest.raises(CaptureError, match="no forward"):
        _ = capture.states
    with capture_states(model, (6,)) as capture:
        with pytest.raises(RuntimeError, match="normalized_shape"):
            model(start())
        model.norm = good
        model(start())
        try:
            raise KeyError("a forward inside of an exception handler is a forward like any other")
        except KeyError:
            model(start())
    assert [forward.states[0][0, 0].item() for forward in capture.forwards] == [63, 63]


def test_hooks_are_removed_when_adding_them_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Stack()
    monkeypatch.setattr(model.layers[3], "register_forward_hook", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError), capture_states(model, (6,)):
        pass
    assert hook_count(model) == 0


def test_other_hooks_stay() -> None:
    model = Stack()
    seen: list[int] = []
    model.layers[0].register_forward_hook(lambda *a: seen.append(1))
    with capture_states(model, (6,)):
        model(start())
    model(start())
    assert seen == [1, 1]


def test_blocks_and_norm_may_be_given() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(PlainBlock(number) for number in range(3))
            self.last = TimesThousand()

        def forward(self, hidden: Tensor) -> Tensor:
            for part in self.parts[:2]:
                hidden = part(hidden)
            return self.last(hidden)

    model = Odd()
    with pytest.raises(CaptureError, match=r"Odd: no blocks were found\. Pass blocks="):
        capture_states(model, (1,))
    with pytest.raises(CaptureError, match="no final norm was found"):
        capture_states(model, (POST_NORM,), blocks=model.parts)
    with capture_states(model, (2, POST_NORM), blocks=list(model.parts[:2]), final_norm=model.last) as capture:
        model(start())
    assert [tensor[0, 0].item() for tensor in capture.states] == [3, 3000]
    with (
        pytest.raises(CaptureError, match=r"2 of 3 blocks ran .*block 2 did not"),
        capture_states(model, (1,), blocks=model.parts),
    ):
        model(start())


def test_unusual_blocks_are_read_as_told() -> None:
    class Odd(PlainBlock):
        def forward(self, batch: dict[str, Any]) -> dict[str, Any]:  # type: ignore[override]
            return {"stream": batch["stream"] + 2.0**self.number}

    class OddStack(Stack):
        def forward(self, hidden: Tensor) -> Tensor:
            batch = {"stream": hidden}
            for layer in self.layers:
                batch = layer(batch)
            return self.norm(batch["stream"])

    model = OddStack([Odd(number) for number in range(3)])
    with pytest.raises(CaptureError, match=r"block 0 .Odd. got 0 float tensors"), capture_states(model, (0,)):
        model(start())
    with pytest.raises(CaptureError, match="block 2 returned dict"), capture_states(model, (3,)):
        model(start())
    readers = {"read_input": lambda args, kwargs: (args[0]["stream"], None), "read_output": lambda out: (out["stream"], None)}
    with capture_states(model, (0, 1, 3, POST_NORM), **readers) as capture:
        model(start())
    assert [tensor[0, 0].item() for tensor in capture.states] == [0, 1, 7, 7000]


def test_one_stage_of_a_pipeline() -> None:
    plan, layout = CapturePlan(ALL, BLOCKS), StageLayout(((0, 2), (2, 6)), BLOCKS)
    carried, hidden = None, start()
    for number in range(2):
        stage = layout.stage(number)
        model = GPTModel(stage.start, stage.end)
        if number:
            with pytest.raises(CaptureError, match=r"holds a part of its blocks only .4 here, the first is layer 3"):
                capture_states(model, (1,))
        with capture_states(model, plan, stage=stage) as capture:
            model(hidden)
        hidden = capture.forwards[0].captured[stage.end]
        with pytest.raises(CaptureError, match="are one stage of 6"):
            _ = capture.states
        carried = capture.forwards[0].carry(carried)
    assert carried is not None
    assert [tensor[0, 0].item() for tensor in plan.arrange(carried.tensors)] == VALUES


def test_the_stage_must_be_the_one_that_the_model_holds() -> None:
    with pytest.raises(CaptureError, match=r"4 blocks for a stage of blocks 0\.\.1"):
        capture_states(GPTModel(2, 6), (1,), stage=Stage(0, 2, 6, first=True, last=False))
    with pytest.raises(CaptureError, match="the first block is layer 3, and the stage begins with 2"):
        capture_states(GPTModel(2, 6), (1,), stage=Stage(1, 5, 6, first=False, last=False))


def test_absent_blocks_of_other_stages_are_left_out() -> None:
    class PPMissingLayer(nn.Identity):
        pass

    model = Stack([PPMissingLayer(), PPMissingLayer(), *(PlainBlock(number) for number in range(2, 6))])
    with pytest.raises(CaptureError, match="4 here, 2 on other pipeline stages"):
        capture_states(model, (6,))
    with capture_states(model, (6, 3), stage=Stage(2, 6, 6, first=False, last=True)) as capture:
        model(start() + 3)
    assert {state: t[0, 0].item() for state, t in capture.forwards[0].captured.items()} == {3: 7, 6: 63}

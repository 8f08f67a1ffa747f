"""What cannot be recorded is refused by name; what failed leaves no hook, no half pass and no end mark."""

# ruff: noqa: E402  # without torch the module is skipped before it imports what needs it

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor

from specalign.capture import CaptureError, StageLayout
from specalign.dump.errors import DumpError
from specalign.recorder import RecordError, record_layers
from tests.unit.recorder import test_record_layers
from tests.unit.recorder.dumps import Block, Embedded, ids, only_pass, read_passes, same_bits, small

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

LAYERS = 4
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def test_a_forward_that_raises_is_not_recorded_and_leaves_no_hook(tmp_path: Path) -> None:
    class Moody(Block):
        angry = False

        def forward(self, hidden_states: Tensor) -> Tensor:
            if self.angry:
                raise RuntimeError("no")
            return super().forward(hidden_states)

    moody = Moody()
    model = Embedded([Block(), moody])
    with torch.no_grad(), record_layers(model, tmp_path / "d"):
        model(ids())
        moody.angry = True
        with pytest.raises(RuntimeError, match="no"):
            model(ids(seed=2))
        moody.angry = False
        model(ids(seed=3))
    reads = read_passes(tmp_path / "d")
    assert [read.rows.tokens.tolist() for read in reads] == [ids(seed=s).flatten().tolist() for s in (1, 3)]
    assert reads[1].rows.request_ids[0] == "pass1/0"
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_an_error_in_a_hook_leaves_no_hook_behind_and_no_end_mark(tmp_path: Path) -> None:
    model = small()
    with pytest.raises(RecordError, match="got no input_ids or tokens"), record_layers(model, tmp_path / "d"):  # noqa: SIM117
        with torch.no_grad():
            model(None)
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert not (tmp_path / "d" / "rank00000" / "end.json").exists()


def test_no_forward_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="1 of 1 models ran no forward"), record_layers(small(), tmp_path / "d"):
        pass
    assert not (tmp_path / "d" / "rank00000" / "end.json").exists()


def test_a_stage_records_its_own_layers(tmp_path: Path) -> None:
    layout = StageLayout(((0, 2), (2, 3)), 3)
    whole = small()
    last = Embedded(list(whole.layers)[2:])
    last.load_state_dict({**last.state_dict(), "embed_tokens.weight": whole.embed_tokens.weight})
    with torch.no_grad(), record_layers(last, tmp_path / "d", layers=[0, 2], stage=layout.stage(1), modules=["layers.*.mlp"]):
        last(ids())
    read = only_pass(tmp_path / "d")
    assert read.keys == {"boundary.3", "module.layers.2.mlp"}
    assert read.info.stage == (2, 3)


REFUSED = {
    "a layer that is not there": ({"layers": [3]}, "a 3-layer target has the layers 0..2"),
    "no layer": ({"layers": []}, "one at least is needed"),
    "a pattern that names nothing": ({"modules": ["*.mpl"]}, r"modules=\['\*.mpl'\]: no module"),
    "a mode": ({"mode": "half"}, "mode='half'"),
    "an order": ({"order": "rows_first"}, "order='rows_first'"),
    "stages for one model": ({"stages": []}, "need stages="),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_questions_are_refused_before_anything_runs(options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=message):
        record_layers(small(), tmp_path / "d", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "d").exists()


def test_a_folder_that_is_taken_is_refused(tmp_path: Path) -> None:
    model = small()
    with torch.no_grad(), record_layers(model, tmp_path / "d"):
        model(ids())
    with pytest.raises(DumpError, match="earlier run"), record_layers(model, tmp_path / "d"):
        pytest.fail("entered")
    with torch.no_grad(), record_layers(model, tmp_path / "d", resume=True):
        model(ids())
    assert len(read_passes(tmp_path / "d")) == 2


def test_a_module_of_other_rows_is_refused(tmp_path: Path) -> None:
    model = test_record_layers.llama()
    with (
        pytest.raises(RecordError, match=r"module.lm_head is \[2, 1, 64\], and the rows of this forward lead to \[2, 5, …\]"),
        torch.no_grad(),
        record_layers(model, tmp_path / "d", modules=["lm_head"]),
    ):
        model(ids(), logits_to_keep=1)


def test_a_module_that_runs_twice_or_never_is_refused(tmp_path: Path) -> None:
    class Twice(Block):
        def forward(self, hidden_states: Tensor) -> Tensor:
            return self.mlp(self.mlp(hidden_states))

    class Never(Block):
        def forward(self, hidden_states: Tensor) -> Tensor:
            return hidden_states + 1

    for kind, message in ((Twice, "module.layers.0.mlp came twice"), (Never, "module.layers.0.mlp did not run")):
        model = Embedded([kind()])
        with pytest.raises(RecordError, match=message), record_layers(model, tmp_path / kind.__name__, modules=["*.mlp"]):
            model(ids())


def test_sequence_first_tensors_come_in_the_order_of_their_rows(tmp_path: Path) -> None:
    class SequenceFirst(Embedded):
        def forward(self, input_ids: Tensor) -> Tensor:  # type: ignore[override]
            hidden = self.embed_tokens(input_ids).transpose(0, 1)
            for layer in self.layers:
                hidden = layer(hidden)
            return self.norm(hidden).transpose(0, 1)

    torch.manual_seed(0)
    model = SequenceFirst([Block(), Block()])
    with torch.no_grad(), record_layers(model, tmp_path / "d", order="sequence_first"):
        model(ids())
    read = only_pass(tmp_path / "d")
    for row, (token, position, request) in enumerate(zip(read.rows.tokens, read.rows.positions, read.rows.requests, strict=True)):
        assert ids()[request, position] == token
        assert same_bits(read["boundary.0"][row], model.embed_tokens.weight[token])
    with pytest.raises(RecordError, match="its axes come in another order"), record_layers(model, tmp_path / "e"):
        model(ids())


def test_it_is_entered_once(tmp_path: Path) -> None:
    model = small()
    recording = record_layers(model, tmp_path / "d")
    with pytest.raises(RecordError, match="has not been entered"):
        _ = recording.rank_folder
    with torch.no_grad(), recording:
        model(ids())
        recording.flush()
        assert recording.stats.passes == 1
    with pytest.raises(RecordError, match="entered once"), recording:
        pytest.fail("entered")

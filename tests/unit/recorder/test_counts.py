"""A recording counts what is not finite while it fingerprints: on each rank, in each mode that stores fingerprints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor, nn  # noqa: E402  # without torch the module is skipped

from specalign.compare.layerwise import compare_dumps  # noqa: E402
from specalign.compare.result import CompareReport  # noqa: E402
from specalign.dump.nonfinite import count_nonfinite  # noqa: E402
from specalign.dump.opening import open_dump  # noqa: E402
from specalign.dump.reader import open_specalign  # noqa: E402
from specalign.dump.validate import validate  # noqa: E402
from specalign.recorder import record_layers  # noqa: E402
from tests.unit.recorder.dumps import Embedded, ids, only_pass, read_passes  # noqa: E402

KEY = "module.layers.0.up"


class Spoiled(nn.Module):
    """`up` makes NaN and both infinities in some rows; the stream itself stays finite."""

    def __init__(self, codes: dict[tuple[int, int], list[float]], part: int | None = None) -> None:
        super().__init__()
        self.up = Codes(codes, part)

    def forward(self, hidden_states: Tensor) -> Tensor:
        self.up(hidden_states)
        return hidden_states + 1


class Codes(nn.Module):
    def __init__(self, codes: dict[tuple[int, int], list[float]], part: int | None) -> None:
        super().__init__()
        self.codes, self.part = codes, part

    def forward(self, hidden: Tensor) -> Tensor:
        made = hidden.detach().clone()
        for (sequence, position), values in self.codes.items():
            made[sequence, position, : len(values)] = torch.tensor(values, dtype=made.dtype)
        return made if self.part is None else made.chunk(2, dim=-1)[self.part]


INF, NAN = float("inf"), float("nan")
CODES = {(0, 3): [NAN, 0.0, -INF, -INF, 1.0, INF], (1, 1): [-INF]}


def record(folder: Path, mode: str, codes: dict[tuple[int, int], list[float]], dtype: torch.dtype = torch.bfloat16) -> Path:
    torch.manual_seed(0)
    model = Embedded([Spoiled(codes)]).to(dtype)
    with record_layers(model, folder, mode=mode, modules=["*.up"]):  # type: ignore[arg-type]
        model(ids(2, 5))
    return folder


def compared(a: Path, b: Path) -> CompareReport:
    return compare_dumps(open_dump(a), open_dump(b))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_the_counts_are_those_of_the_values(tmp_path: Path, dtype: torch.dtype) -> None:
    full = only_pass(record(tmp_path / "full", "full", CODES, dtype)).raw
    marks = only_pass(record(tmp_path / "marks", "fingerprint", CODES, dtype)).raw
    assert marks[KEY].nonfinite.tolist() == [[0, 0]] * 3 + [[2, 2]] + [[0, 0]] * 2 + [[0, 1]] + [[0, 0]] * 3
    for key in full:
        assert marks[key].spec.counted
        assert np.array_equal(marks[key].nonfinite, count_nonfinite(full[key].data, full[key].dtype)), key


def test_both_modes_store_counts_beside_the_fingerprints(tmp_path: Path) -> None:
    both = record(tmp_path / "both", "both", CODES)
    assert validate(both).ok
    dump = open_specalign(both)
    assert dump.fingerprints(dump.infos()[0])[KEY].nonfinite.sum(axis=0).tolist() == [2, 3]


def test_equal_nan_in_two_recordings_of_fingerprints_fail(tmp_path: Path) -> None:
    a, b = (record(tmp_path / name, "fingerprint", CODES) for name in "ab")
    (problem,) = compared(a, b).problems
    assert problem.code == "non-finite"
    assert problem.where.startswith(f"{KEY}, side a, request pass0/1, position 1, ")
    assert problem.how_much == "5 elements on side a, 5 on side b"
    good = [record(tmp_path / name, "fingerprint", {}) for name in "cd"]
    report = compared(*good)
    assert report.ok
    assert report.notes == ()


def test_counts_of_the_shards_of_two_ranks_add_up(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for rank in range(2):
            torch.manual_seed(0)
            model = Embedded([Spoiled(CODES, rank)]).bfloat16()
            with record_layers(
                model,
                tmp_path / name,
                mode="fingerprint",
                modules=["*.up"],
                axes={KEY: "hidden@tp"},
                rank=rank,
                world=2,
                coords=(("tp", rank),),
                layout={"tp": 2},
            ):
                model(ids(2, 5))
    parts = [one.raw[KEY].nonfinite for one in read_passes(tmp_path / "a")]
    assert [part[3].tolist() for part in parts] == [[1, 2], [1, 0]]
    for other in (tmp_path / "b", record(tmp_path / "whole", "fingerprint", CODES), record(tmp_path / "full", "full", CODES)):
        (problem,) = compared(tmp_path / "a", other).problems
        assert (problem.code, problem.how_much) == ("non-finite", "5 elements on side a, 5 on side b")

"""`specalign dump inspect|validate|convert`."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from specalign.cli.progress import progress_line
from specalign.dump.reader import open_specalign
from specalign.dump.validate import validate
from tests.unit.cli.conftest import Ran
from tests.unit.dump.made import bits, boundaries, manifest, prefill, rows_of, small_dump, tensor, write_dump

Run = Callable[..., Ran]


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Two ranks; boundaries as tensors and one module as fingerprints; padding and a health check beside two requests."""
    world = manifest(world=2, layout={"tp": 2})
    rows = [prefill({"a": [1, 2, 3], "b": [4]}), rows_of([("a", 3, 9, 1), (None, 0, 0, 2), ("health", 0, 1, 3)])]
    for rank in range(2):
        made = [
            [
                *boundaries(len(r), [0, 2], site="pre-block"),
                tensor("module.layers.1.mlp", bits(len(r), 4, "F32"), dtype="F32", fingerprint=True),
            ]
            for r in rows
        ]
        write_dump(
            tmp_path / "made", list(zip(rows, made, strict=True)), manifest=world, rank=rank, coords=[("tp", rank)], stage=(0, 4)
        )
    return tmp_path / "made"


def test_inspect_tells_what_is_there(run: Run, dump: Path) -> None:
    ran = run("dump", "inspect", dump)
    assert (ran.code, ran.err) == (0, "")
    lines = [" ".join(line.split()) for line in ran.out.splitlines()]
    assert lines[0] == f"{dump}: a test"
    assert "device: cpu (cpu)" in lines
    assert "0 tp 0 0 to 3 2 7 336" in lines
    assert "1 tp 1 0 to 3 2 7 336" in lines
    keys = [line for line in lines if line.startswith(("boundary", "module"))]
    assert keys == [
        "boundary.0 BF16 8 pre-block - tensor 4 224",
        "module.layers.1.mlp F32 4 - - fingerprints 4 224",
        "boundary.2 BF16 8 pre-block - tensor 4 224",
    ]
    assert "rows: 8 prefill, 2 decode, 2 padding, 2 health check" in lines
    assert "requests: 2, of 1 to 4 tokens (median 2.5)" in lines


def test_inspect_tells_what_is_not_finite(run: Run, tmp_path: Path) -> None:
    rows, dirty = prefill({"a": [1, 2, 3]}), bits(3)
    dirty[1, :5] = dirty[2, 0] = 0xFF80
    dirty[2, 7] = 0x7FC0
    made = [tensor(key, data, fingerprint=True, counted=True) for key, data in (("boundary.0", bits(3)), ("logits", dirty))]
    write_dump(tmp_path / "made", [(rows, [*made, tensor("post_norm", bits(3), fingerprint=True)])] * 2)
    lines = [" ".join(line.split()) for line in run("dump", "inspect", tmp_path / "made").out.splitlines()]
    assert "boundary.0 BF16 8 - - fingerprints, all finite 2 96" in lines
    assert "post_norm BF16 8 - - fingerprints 2 96" in lines
    assert "logits BF16 8 - - fingerprints, 2 NaN and +inf and 12 -inf 2 144" in lines
    assert "0 - - 2 6 336" in lines
    keys = run("dump", "inspect", tmp_path / "made", "--json").json()["keys"]
    assert {key["key"]: key["nonfinite"] for key in keys} == {"boundary.0": [0, 0], "post_norm": None, "logits": [2, 12]}


def test_inspect_as_json(run: Run, dump: Path) -> None:
    plain = run("dump", "inspect", dump, "--json").json()
    assert plain["schema"] == "specalign.dump.inspect/1"
    assert plain["requests"] == {"a": 4, "b": 1}
    assert plain["kinds"] == {"prefill": 8, "decode": 2, "padding": 2, "health check": 2}
    assert plain["manifest"]["layout"] == {"tp": 2}
    assert [rank["coords"] for rank in plain["ranks"]] == [{"tp": 0}, {"tp": 1}]


def test_inspect_looks_into_a_dump_in_which_something_is_missing(run: Run, dump: Path) -> None:
    (dump / "rank00000" / "pass00000.safetensors").unlink()
    ran = run("dump", "inspect", dump)
    assert ran.code == 0
    assert "rows: 4 prefill" in ran.out


def test_many_ranks_are_cut_short(run: Run, tmp_path: Path) -> None:
    for rank in range(10):
        small_dump(tmp_path / "d", manifest=manifest(world=10), rank=rank, steps=0)
    assert "… and 2 more ranks" in run("dump", "inspect", tmp_path / "d").out


def test_validate_exits_0_on_a_whole_dump_and_1_on_a_bad_one(run: Run, dump: Path) -> None:
    ran = run("dump", "validate", dump)
    assert (ran.code, ran.out.splitlines()[-1]) == (0, validate(dump).format().splitlines()[-1])
    (dump / "rank00001" / "end.json").unlink()
    ran = run("dump", "validate", dump)
    assert ran.code == 1
    assert ran.out.splitlines()[0].startswith(f"error [no-end] {dump / 'rank00001'}: ")
    assert run("dump", "validate", dump, "--json").json()["problems"][0]["code"] == "no-end"


def test_a_folder_without_manifest_is_a_bad_dump(run: Run, tmp_path: Path) -> None:
    ran = run("dump", "validate", tmp_path)
    assert ran.code == 1
    assert "[manifest]" in ran.out


@pytest.mark.parametrize("action", ["inspect", "validate", "convert"])
def test_nothing_there_exits_2_with_one_line(run: Run, tmp_path: Path, action: str) -> None:
    ran = run("dump", action, tmp_path / "gone", *([tmp_path / "out"] if action == "convert" else []))
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1)
    assert str(tmp_path / "gone") in ran.err


def test_convert_to_fingerprints_of_some_keys(run: Run, dump: Path, tmp_path: Path) -> None:
    ran = run("dump", "convert", dump, tmp_path / "out", "--fingerprint", "--keys", "boundary.0,boundary.2")
    assert (ran.code, ran.err) == (0, "")
    assert f"{tmp_path / 'out'}: 4 passes" in ran.out
    assert validate(tmp_path / "out").ok
    specs = [spec for info in open_specalign(tmp_path / "out").infos() for spec in info.tensors.values()]
    assert {(spec.key, spec.fingerprint) for spec in specs} == {("boundary.0", True), ("boundary.2", True)}
    again = run("dump", "convert", dump, tmp_path / "out", "--fingerprint", "--keys", "boundary.0,boundary.2")
    assert (again.code, len(again.err.splitlines())) == (2, 1)


@pytest.mark.parametrize("keys", ["boundary.7", "nonsense"])
def test_convert_of_a_key_that_is_not_there_exits_2(run: Run, dump: Path, tmp_path: Path, keys: str) -> None:
    ran = run("dump", "convert", dump, tmp_path / "out", "--keys", keys)
    assert ran.code == 2
    assert keys in ran.err


def test_a_reader_that_there_is_not(run: Run, dump: Path) -> None:
    ran = run("dump", "inspect", dump, "--reader", "nonsense")
    assert ran.code == 2
    assert "nonsense" in ran.err


def test_an_action_is_needed(run: Run) -> None:
    assert run("dump").code == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_on_a_terminal_that_goes_away() -> None:
    times = iter([0.0, 0.5, 1.5, 1.6, 1.8])
    out = Terminal()
    with progress_line("validating", "passes", stream=out, clock=lambda: next(times)) as progress:
        for done in (1, 2, 3, 4):
            progress(done, 2000)
    assert out.getvalue() == "\rvalidating: 2 of 2,000 passes (0%)\x1b[K\rvalidating: 4 of 2,000 passes (0%)\x1b[K\r\x1b[K"


def test_short_runs_and_files_get_no_progress() -> None:
    terminal, file = Terminal(), io.StringIO()
    for out, clock in ((terminal, lambda: 0.0), (file, iter(range(100)).__next__)):
        with progress_line("validating", "passes", stream=out, clock=clock) as progress:
            progress(1, 2)
            progress(2, 2)
        assert out.getvalue() == ""


def test_a_foreign_dump_is_looked_into_and_converted(run: Run, tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    (tmp_path / "foreign").mkdir()
    tensors = {
        "tokens": np.array([5, 6, 7]),
        "positions": np.array([0, 1, 2]),
        "boundary.0": np.arange(12, dtype=np.float32).reshape(3, 4),
    }
    save_file(tensors, tmp_path / "foreign" / "pass0.safetensors")
    ran = run("dump", "inspect", tmp_path / "foreign")
    assert ran.code == 0
    assert "boundary.0  F32   4" in ran.out
    assert run("dump", "convert", tmp_path / "foreign", tmp_path / "out").code == 0
    assert run("dump", "validate", tmp_path / "out").code == 0
    dump = open_specalign(tmp_path / "out")
    assert dump.load(dump.infos()[0])["boundary.0"].data.view("<f4").tolist() == tensors["boundary.0"].tolist()

"""`specalign compare`: exit codes, files and messages, on dumps on the disk."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specalign.cli import compare as cli
from specalign.cli.main import main
from specalign.compare import running
from specalign.dump.writer import DumpWriter
from tests.unit.compare.dumps import MemoryDump, decode, flip, prefill, run

REQUESTS = {"one": [5, 17, 23, 99, 7], "two": [1, 2, 3, 4]}


def write(dump: MemoryDump, folder: Path) -> Path:
    """A dump that lay in memory, on the disk."""
    with DumpWriter(folder, dataclasses.replace(dump.manifest, model={"num_layers": 3})) as writer:
        for item in dump.passes:
            writer.write_pass(item.rows, list(item.tensors.values()))
    return folder


@pytest.fixture
def train(tmp_path: Path) -> Path:
    return write(run(REQUESTS, prefill("one", 5) + prefill("two", 4)), tmp_path / "train")


@pytest.fixture
def rollout(tmp_path: Path) -> Path:
    return write(run(REQUESTS, prefill("one", 3) + prefill("two", 3), decode(3, "one", "two")), tmp_path / "rollout")


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    edit = lambda key, row, made: flip(made) if key == "boundary.2" and row[1] == 3 else made  # noqa: E731
    return write(run(REQUESTS, prefill("one", 3) + prefill("two", 3), decode(3, "one", "two"), edit=edit), tmp_path / "wrong")


def test_equal_dumps(train: Path, rollout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(train), str(rollout)]) == 0
    assert "EQUAL" in capsys.readouterr().out


def test_different_dumps(train: Path, wrong: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(train), str(wrong)]) == 1
    out = capsys.readouterr().out
    assert "DIFFERENT" in out
    assert "boundary.2" in out
    assert "position 3" in out


def test_json_on_standard_output(train: Path, wrong: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(train), str(wrong), "--json", "-"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "specalign.compare/1"
    assert document["ok"] is False


def test_json_in_a_file(train: Path, rollout: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("old", "utf-8")
    assert main(["compare", str(train), str(rollout), "--json", str(target)]) == 0
    assert json.loads(target.read_text("utf-8"))["ok"] is True
    assert {path.name for path in tmp_path.iterdir()} == {"out.json", "train", "rollout"}


def test_a_json_file_that_cannot_be_written(
    train: Path, rollout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(train), str(rollout), "--json", str(tmp_path / "nowhere" / "out.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_layers_and_mode(train: Path, wrong: Path) -> None:
    assert main(["compare", str(train), str(wrong), "--layers", "0,2"]) == 0
    assert main(["compare", str(train), str(wrong), "--mode", "ulp:1"]) == 0
    assert main(["compare", str(train), str(wrong), "--mode", "ulp:0"]) == 1


def test_a_declared_gap(train: Path, tmp_path: Path) -> None:
    part = write(run(REQUESTS, prefill("one", 5)), tmp_path / "part")
    gaps = tmp_path / "gaps.toml"
    gaps.write_text('[[missing]]\nside = "b"\nrequests = "two"\nreason = "not sampled"\n', "utf-8")
    assert main(["compare", str(train), str(part)]) == 1
    assert main(["compare", str(train), str(part), "--declare-missing", str(gaps)]) == 0


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_two_processes(
    train: Path, wrong: Path, method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Forked, and started afresh as where torch is loaded: the same report as from one process."""
    monkeypatch.setattr(running, "start_method", lambda: method)
    assert method in multiprocessing.get_all_start_methods()
    reports = []
    for jobs in ("1", "2"):
        assert main(["compare", str(train), str(wrong), "--jobs", jobs, "--json", "-"]) == 1
        reports.append(json.loads(capsys.readouterr().out))
    assert reports[0] == reports[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--layers", "x"], "neither a layer"),
        (["--mode", "nearly"], "nearly"),
        (["--expect-rows", "some"], "neither both, a, b, nor a number"),
        (["--jobs", "0"], "at least one process"),
        (["--declare-missing", "/nowhere.toml"], "no such file"),
    ],
)
def test_bad_arguments(train: Path, rollout: Path, arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(train), str(rollout), *arguments]) == 2
    assert says in capsys.readouterr().err


def test_a_folder_that_is_no_dump(train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(train), str(tmp_path / "nowhere")]) == 2
    assert main(["compare", str(train), str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_tolerance_for_fingerprints(train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dump", "convert", str(train), str(tmp_path / "small"), "--fingerprint"]) == 0
    assert main(["compare", str(train), str(tmp_path / "small")]) == 0
    assert main(["compare", str(train), str(tmp_path / "small"), "--mode", "abs:0.1"]) == 2
    assert "--mode bits" in capsys.readouterr().err


def test_progress_on_a_terminal(
    train: Path, rollout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The comparison is cut into pieces for the line's sake, and finds the same."""
    told: list[tuple[int, int]] = []

    @contextlib.contextmanager
    def line(doing: str, unit: str) -> Iterator[Callable[[int, int], None]]:
        yield lambda done, total: told.append((done, total))

    monkeypatch.setattr(cli, "progress_line", line)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert main(["compare", str(train), str(rollout)]) == 0
    assert told
    assert told[-1][0] == told[-1][1] == 8
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_dump_equals_itself_and_that_proves_nothing(train: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "link").symlink_to(train)
    assert main(["compare", str(train), str(tmp_path / "link")]) == 2
    assert "equals itself" in capsys.readouterr().err


def test_a_run_that_did_not_come_to_its_end(train: Path, rollout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is there agrees, and what the killed writer would have written nobody knows."""
    (rollout / "rank00000" / "end.json").unlink()
    assert main(["compare", str(train), str(rollout)]) == 1
    assert "not-finished" in capsys.readouterr().out
    assert main(["compare", str(train), str(rollout), "--allow-unfinished"]) == 0
    assert "no end mark" in capsys.readouterr().out

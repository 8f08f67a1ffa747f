"""Ranks that are started for a call: where they run, what comes back, what is refused, and what is left of them."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from specalign.ranks import Launch, RankGroup, RankGroupError, RanksFailedError, RankWarning, group  # noqa: E402
from tests.unit.ranks import functions  # noqa: E402
from tests.unit.ranks.watching import Watched  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither a file nor a child of this process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_results_come_by_rank_with_the_arguments() -> None:
    x = torch.ones(2)
    results = RankGroup(3, "gloo").run(functions.place, 1, key=x)
    assert [result[:3] for result in results] == [(rank, 3, (1,)) for rank in range(3)]
    assert all(result[3]["key"].equal(x) for result in results)


def test_the_group_computes_together() -> None:
    x = torch.tensor([1.5, -0.0, float("inf")], dtype=torch.float64)
    first, second = RankGroup(2, "gloo").run(functions.total, x)
    assert first.equal(x * 3)
    assert first.view(torch.uint8).equal(second.view(torch.uint8))


def test_where_a_rank_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "nowhere.invalid")
    (seen,) = RankGroup(1, "gloo", changes={"SPECALIGN_TEST": "here"}).run(functions.surroundings)
    environ = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": None}
    assert seen["environ"] == {**environ, "SPECALIGN_TEST": "here"}
    assert (seen["threads"], seen["stdin"], seen["path"]) == (1, "", [path or str(Path.cwd()) for path in sys.path])
    assert seen["pid"] != os.getpid()


def test_a_daemon_that_was_left_is_ended_and_told_of() -> None:
    with pytest.warns(RankWarning, match="stop what the function starts:\n  left behind, and killed: pid") as caught:
        (pid,) = RankGroup(1, "gloo").run(functions.leave_a_daemon)
    assert f"pid {pid} (sleep 1000)" in str(caught[0].message)
    assert caught[0].filename == __file__
    with pytest.raises(ProcessLookupError):
        Watched([pid])


def test_a_rank_that_returns_and_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "END_TIMEOUT", 10.0)
    with pytest.raises(RanksFailedError) as error:
        RankGroup(2, "gloo").run(functions.end_late)
    (failure,) = error.value.failures
    assert (failure.rank, failure.reason) == (1, "returned, and its process had not ended 10 s later, and was killed")
    assert "(most recent call first)" in failure.details


def test_a_rank_that_returns_and_ends_badly_failed() -> None:
    with pytest.raises(RanksFailedError) as error:
        RankGroup(2, "gloo").run(functions.crash_late)
    (failure,) = error.value.failures
    assert (failure.rank, failure.reason) == (1, "returned, then ended by SIGABRT")
    assert "Fatal Python error: Aborted" in failure.details


def test_an_exception_whose_text_cannot_be_had_is_told() -> None:
    with pytest.raises(RanksFailedError) as error:
        RankGroup(1, "gloo").run(functions.raise_without_text)
    (failure,) = error.value.failures
    assert failure.reason == "raised NoTextError: <its text cannot be had: RuntimeError>"
    assert "in raise_without_text" in failure.details


def test_a_result_that_cannot_be_read_is_the_failure_of_its_rank() -> None:
    with pytest.raises(RanksFailedError) as error:
        RankGroup(2, "gloo").run(functions.return_what_cannot_be_read)
    (failure,) = error.value.failures
    assert failure.rank == 1
    assert failure.reason.startswith("returned what cannot be read here: unpickling it raised OSError: no way back")
    assert "in _no_way_back" in failure.details


@pytest.mark.parametrize("kind", ["returns", "raises"])
def test_a_forked_child_does_not_speak_for_its_rank(capfd: pytest.CaptureFixture[str], kind: str) -> None:
    assert RankGroup(1, "gloo").run(functions.fork_and_forget, kind) == ["of the rank"]
    said = capfd.readouterr().err
    assert "end it in the function, by os._exit" in said
    assert ("ValueError: in the child" in said) == (kind == "raises")


def test_when_one_failed_the_others_are_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "GRACE", 0.5)
    with pytest.raises(RanksFailedError) as error:
        RankGroup(2, "gloo").run(functions.wait_and_see, "no")
    busy, failed = error.value.failures
    assert failed.reason == "raised RuntimeError: no"
    assert busy.reason == "had not returned 0.5 s after rank 1 had failed, and was killed"
    assert "functions.py" in busy.details
    assert "in wait_and_see" in busy.details


def test_ranks_that_do_not_come_to_start_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "START_TIMEOUT", 0.01)
    with pytest.raises(
        RanksFailedError, match=r"was not done 0.01 s after the start, when 0 of 2 ranks had joined, and was killed"
    ):
        RankGroup(2, "gloo", timeout=0.01).run(functions.place)


REFUSED = {
    "size": ({"world_size": 0}, "world_size is 0: give a whole number of at least 1"),
    "bool": ({"world_size": True}, "world_size is True"),
    "backend": ({"backend": "mpi"}, "backend is 'mpi': give one of 'gloo', 'nccl', 'cpu:gloo,cuda:nccl'"),
    "timeout": ({"timeout": 0.0}, "timeout is 0.0: give seconds, more than 0"),
    "no lease": ({"backend": "nccl"}, r"needs a lease of 2 GPUs here, one for each rank, and has 0: mark .*gpu\(count=2\)"),
    "small lease": ({"backend": "nccl", "devices": ["GPU-1"]}, "needs a lease of 2 GPUs here, one for each rank, and has 1"),
    "launch": ({"launch": Launch(1, 4, 1, 4)}, r"rank 1 of an outer launch of 4: start 2 processes \(torchrun --nproc-per-node"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_group_that_cannot_be_is_refused(case: str) -> None:
    changes, said = REFUSED[case]
    with pytest.raises(RankGroupError, match=said):
        RankGroup(**{"world_size": 2, "backend": "gloo", **changes})

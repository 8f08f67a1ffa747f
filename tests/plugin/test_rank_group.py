"""The fixture rank_group: a test's functions on real ranks (gloo), and what every failing rank says."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from tests.plugin.support import WITHOUT_XDIST, WORKERS, Gpus, Run

WORKS = """
import os
import pytest
import torch
import torch.distributed as dist


class Point:
    def __init__(self, x):
        self.x = x


def place(point, scale=1):
    return dist.get_rank(), point.x * scale, Point(dist.get_rank())


def total(x):
    dist.all_reduce(x)
    return x


def random_number():
    return torch.rand(1).item(), torch.are_deterministic_algorithms_enabled()


def test_place(rank_group):
    results = rank_group(2, "gloo").run(place, Point(2), scale=3)
    assert [result[:2] for result in results] == [(0, 6), (1, 6)]
    assert [result[2].x for result in results] == [0, 1]


def test_total(rank_group):
    for result in rank_group(2).run(total, torch.ones(2, dtype=torch.bfloat16)):
        assert result.tolist() == [2, 2]


def test_random(deterministic, rank_group):
    here = torch.rand(1).item()
    assert rank_group(2).run(random_number) == [(here, True), (here, True)]
    assert torch.rand(1).item() != here


def test_no_seed(rank_group):
    assert not rank_group(1).run(random_number)[0][1]
"""


@pytest.mark.parametrize(
    ("mode", "workers"),
    [pytest.param("prepend", WITHOUT_XDIST), pytest.param("importlib", *WORKERS[1].values, marks=WORKERS[1].marks)],
    ids=["prepend, one process", "importlib, xdist"],
)
def test_functions_of_a_test_module_run_on_the_ranks(
    run: Run, pytester: pytest.Pytester, mode: str, workers: tuple[str, ...]
) -> None:
    pytester.makepyfile(**{"tests/test_it": WORKS})
    run("-Werror", f"--import-mode={mode}", *workers).assert_outcomes(passed=4)


FAILS = """
import os
import signal
import subprocess
import pytest
import torch
import torch.distributed as dist


def raises():
    if dist.get_rank() == 1:
        seen = [1, 2]
        assert seen == [1, 3]
    dist.all_reduce(torch.ones(1))


def both_raise():
    raise (KeyError, OSError)[dist.get_rank()](f"of rank {dist.get_rank()}")


def exits():
    if dist.get_rank() == 1:
        os._exit(3)


def is_killed():
    if dist.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def hangs():
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(1))


def leaves():
    subprocess.Popen(["sleep", "1000"], start_new_session=True)


def returns_a_file():
    return open(os.devnull)


def skips():
    pytest.skip("not here")


CASES = [raises, both_raise, exits, is_killed, hangs, leaves, returns_a_file, skips]


@pytest.mark.parametrize("function", CASES, ids=lambda function: function.__name__)
def test_it(rank_group, function):
    rank_group(2, timeout=5).run(function)


def test_lambda(rank_group):
    rank_group(2).run(lambda: None)
"""

SAID = {
    "raises": [
        "*RanksFailedError: rank_group(2, 'gloo').run(*.raises): 2 of 2 ranks failed",
        "*  rank 0 (*, pid *) raised RuntimeError: *",
        "*  rank 1 (*, pid *) raised AssertionError: assert [[]1, 2] == [[]1, 3] [[]the first to fail]",
        "*    Traceback (most recent call last):",
        "*      File \"*test_it.py\", line *, in raises",
        "*        assert seen == [[]1, 3]",
    ],
    "both_raise": [
        "*: 2 of 2 ranks failed",
        "*  rank 0 (*, pid *) raised KeyError: 'of rank 0'*",
        "*in both_raise",
        "*    KeyError: 'of rank 0'",
        "*  rank 1 (*, pid *) raised OSError: of rank 1*",
        "*in both_raise",
        "*    OSError: of rank 1",
    ],
    "exits": ["*: 1 of 2 ranks failed", "*  rank 1 (*, pid *) ended by exit code 3 before it returned"],
    "is_killed": ["*  rank 0 (*, pid *) ended by SIGKILL before it returned [[]the first to fail]"],
    "hangs": [
        "*: 1 of 2 ranks failed",
        "*  rank 1 (*, pid *) had not returned 5 s after all ranks had joined, and was killed",
        "*(most recent call first):",
        "*in all_reduce",
        "*test_it.py\", line * in hangs",
    ],
    "leaves": ["*RankWarning: *.leaves): stop what the function starts:", "*left behind, and killed: pid * (sleep 1000)"],
    "returns_a_file": [
        "*  rank 1 (*) raised TypeError: rank 1 returned a _io.TextIOWrapper that cannot be sent back: cannot pickle *"
    ],
    "skips": ["*  rank 0 (*) raised Skipped: not here*", "*  rank 1 (*) raised Skipped: not here*"],
    "lambda": ["*test_it.test_lambda.<locals>.<lambda> is a lambda: the ranks are new processes*Define it at the top level of a module*"],
}  # fmt: skip


def test_every_failing_rank_is_told_of(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=FAILS)
    result = run(*WITHOUT_XDIST, "-rfp")
    result.assert_outcomes(failed=8, passed=1, warnings=1)
    for case, said in SAID.items():
        head = "*test_lambda*" if case == "lambda" else "*warnings summary*" if case == "leaves" else f"*__ test_it[[]{case}] __*"
        result.stdout.fnmatch_lines([head, *said])
    result.stdout.no_fnmatch_line("*spawned.py:*: in *")


REFUSED = """
import pytest


def nothing(): ...


def test_no_lease(rank_group):
    rank_group(2, "nccl")


@pytest.mark.gpu(count=2)
def test_small(rank_group):
    rank_group(3, "nccl")


def test_size(rank_group):
    rank_group(0)


@pytest.mark.gpu(count=2)
def test_mapping(rank_group, gpu_lease):
    group = rank_group(2, "nccl")
    assert group.devices == ("GPU-0", "GPU-1")
    rank_group(2, "gloo").run(nothing)
"""


@pytest.mark.parametrize("asked", [(), ("-p", "specalign")], ids=["inert", "active"])
def test_ranks_on_gpus_need_a_lease_of_as_many(
    run: Run, pytester: pytest.Pytester, gpus: Gpus, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_it=REFUSED)
    gpus(2)
    pytester.makeini("[pytest]\nmarkers = gpu: x\n")
    if not asked:
        monkeypatch.delenv("SPECALIGN_LOCK_DIR")
    result = run(*asked, *WITHOUT_XDIST)
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(
        [
            "*RankGroupError: test_it.py::test_no_lease: ranks on GPUs need a lease: mark the test @pytest.mark.gpu(count=N)*",
            "*RankGroupError: rank_group(3, 'nccl') needs a lease of 3 GPUs here, one for each rank, and has 2: mark *",
            "*RankGroupError: world_size is 0: give a whole number of at least 1",
        ]
    )


def test_the_option_is_the_timeout(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(rank_group):\n    assert rank_group(2).timeout == 7\n")
    run(SPECALIGN_RANK_TIMEOUT="7").assert_outcomes(passed=1)
    pytester.makepyfile(
        "def test_it(rank_group):\n    assert (rank_group(2).timeout, rank_group(2, timeout=1).timeout) == (300, 1)\n"
    )
    run().assert_outcomes(passed=1)


def test_without_torch_the_fixture_names_the_extra(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "def test_it(rank_group, monkeypatch): pass\n",
        sitecustomize="import importlib.util as u\nold = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'torch' else old(name, *more)\n",
    )
    run.path = [str(pytester.path), *run.path]
    result = run(*WITHOUT_XDIST)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["rank_group needs torch, which is not installed: install pytest-specalign[[]torch]"])

"""Under an outer torchrun the functions run in its own processes, and a rank that fails holds up no other one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from specalign.leases import LockFolder, Pool, Request
from specalign.leases.devices import Inventory
from tests.plugin.support import WITHOUT_XDIST, Gpus, Run
from tests.unit.leases.made_up import gpu
from tests.unit.ranks.watching import PATIENCE

CONFTEST = """
import json
import os


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        with open(f"rank{os.environ['RANK']}.jsonl", "a") as file:
            file.write(json.dumps([report.nodeid.partition("::")[2], report.outcome, report.longreprtext]) + "\\n")
"""

PROGRAM = """
import os
import threading

import torch
import torch.distributed as dist

RANK = int(os.environ["RANK"])


def place(x):
    return dist.get_rank(), os.getpid(), x


def total(x):
    dist.all_reduce(x)
    return x


def raises():
    if dist.get_rank() == 1:
        seen = [1, 2]
        assert seen == [1, 3]
    dist.all_reduce(torch.ones(1))


def both_raise():
    raise (KeyError, OSError)[dist.get_rank()](f"of rank {dist.get_rank()}")


def hangs():
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(1))


def is_late():
    if dist.get_rank() == 1:
        threading.Event().wait(3)


def returns_a_file():
    return open(os.devnull) if dist.get_rank() else 1


def random_number():
    return torch.rand(1).item()


def test_place(rank_group):
    results = rank_group(2).run(place, torch.ones(2))
    assert [rank for rank, _, _ in results] == [0, 1]
    assert results[RANK][1] == os.getpid()
    assert results[1][2].tolist() == [1, 1]


def test_raises(rank_group):
    rank_group(2, timeout=60).run(raises)


def test_both(rank_group):
    rank_group(2, timeout=60).run(both_raise)


def test_hangs(rank_group):
    rank_group(2, timeout=2).run(hangs)


def test_late(rank_group):
    rank_group(2, timeout=1).run(is_late)


def test_file(rank_group):
    rank_group(2).run(returns_a_file)


def test_size(rank_group):
    rank_group(4).run(place, 1)


def test_calls(rank_group):
    rank_group(2).run(*[(place, 1), (raises,)][RANK])


def test_alone(rank_group):
    if RANK == 0:
        rank_group(2, timeout=1).run(place, 1)


def test_lambda(rank_group):
    rank_group(2).run(lambda: None)


def test_random(deterministic, rank_group):
    here = torch.rand(1).item()
    assert rank_group(2).run(random_number) == [here, here]
    assert torch.rand(1).item() != here


def test_again(rank_group):
    group = rank_group(2)
    for _ in range(3):
        assert [result.tolist() for result in group.run(total, torch.ones(2))] == [[2, 2], [2, 2]]
    assert not dist.is_initialized()


def test_in_a_group_that_is_there(rank_group):
    dist.init_process_group("gloo")
    assert rank_group(2).run(total, torch.ones(1))[0].item() == 2
    assert dist.is_initialized()
    dist.destroy_process_group()
"""

BOTH = {
    "test_raises": [
        "rank_group(2, 'gloo').run(test_it.raises): 2 of 2 ranks failed",
        ") raised AssertionError: assert [1, 2] == [1, 3] [the first to fail]",
        "in raises\n",
        "assert seen == [1, 3]",
    ],
    "test_both": ["2 of 2 ranks failed", "raised KeyError: 'of rank 0'", "raised OSError: of rank 1", "in both_raise"],
    "test_hangs": ["1 of 2 ranks failed", "rank 1 (", "imed out waiting", "in hangs"],
    "test_late": ["1 of 2 ranks failed", "rank 1 (", "raised TimeoutError: had not returned 1 s after all ranks had met"],
    "test_file": ["1 of 2 ranks failed", "rank 1 returned a _io.TextIOWrapper that cannot be sent back"],
    "test_size": ["rank_group(4, 'gloo'): this process is rank", "of an outer launch of 2: start 4 processes (torchrun"],
    "test_calls": [
        "with different calls:",
        "  rank 0: rank_group(2, 'gloo').run(test_it.place)",
        "  rank 1: ",
        "test_it.raises)",
    ],
    "test_lambda": ["test_lambda.<locals>.<lambda> is a lambda"],
}
RANK0 = {
    **BOTH,
    "test_alone": ["1 of 2 ranks failed", "rank 1 (host unknown, pid unknown) did not come within 1 s; it was last at"],
}


def test_two_processes_of_torchrun_are_the_ranks(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=PROGRAM)
    pytester.makeconftest(CONFTEST)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(run.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=localhost:0", "-m", "pytest", "-p", "specalign", *WITHOUT_XDIST, "test_it.py"]
    ran = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3 * PATIENCE)
    print(ran.stdout)
    for rank, failing in ((0, RANK0), (1, BOTH)):
        lines = (pytester.path / f"rank{rank}.jsonl").read_text("utf-8").splitlines()
        said = {name: (outcome, text) for name, outcome, text in map(json.loads, lines)}
        assert {name for name, (outcome, _) in said.items() if outcome != "passed"} == set(failing)
        assert len(said) == 13
        for name, parts in failing.items():
            assert [part for part in parts if part not in said[name][1]] == [], said[name][1]


LAUNCH = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}


def test_workers_of_xdist_under_a_launch_are_refused(run: Run, pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    pytester.makepyfile("def test_it(rank_group):\n    rank_group(2)\n")
    result = run("-n1", **LAUNCH, MASTER_PORT="1")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*RankGroupError: this worker of xdist runs under an outer launch of 2 ranks*"])


def test_a_rank_that_finds_no_launch_says_so_in_time(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import os\n\ndef test_it(rank_group):\n    rank_group(2, timeout=2).run(os.getpid)\n")
    result = run(*WITHOUT_XDIST, **LAUNCH, MASTER_PORT="0")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*RankGroupError: the ranks of the outer launch did not meet at localhost:0 within 2 s: *"])


LEASED = """
import pytest


@pytest.mark.gpu(count=2)
def test_two(gpu_lease):
    assert [device.uuid for device in gpu_lease.devices] == UUIDS


@pytest.mark.gpu(count=8)
def test_all_nodes(gpu_lease):
    assert [device.uuid for device in gpu_lease.devices] == UUIDS


def test_one(gpu_lease):
    assert len(gpu_lease.devices) == 1
"""


def test_the_ranks_of_a_node_share_the_lease_of_their_launch(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    two = (gpu(0), gpu(1))
    more = "from tests.unit.leases.made_up import gpu\ndef pytest_specalign_discover_devices(config):\n    return [gpu(i) for i in range(4)]\n"
    locks = gpus(0, more)
    pytester.makepyfile(LEASED.replace("UUIDS", repr([device.uuid for device in two])))
    args = ("-p", "specalign", *WITHOUT_XDIST)
    with Pool(lambda: Inventory(two, "hook"), LockFolder(locks), {}).lease(Request(2)) as lease:
        run(*args, **LAUNCH, **lease.changes, MASTER_PORT="1").assert_outcomes(passed=3)
        with Pool(lambda: Inventory(two, "hook"), LockFolder(locks), lease.changes).lease(
            Request(1)
        ):  # the other rank, in its test_one
            run(*args, **LAUNCH, **lease.changes, MASTER_PORT="1").assert_outcomes(passed=3)
    result = run(*args, **LAUNCH, MASTER_PORT="1")
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(["*asked for 2 GPUs to share with other ranks *specalign lease --count 2 -- torchrun ...)"])

"""What a test leaves on its GPU fails it by name: memory that tensors hold, and processes."""

from __future__ import annotations

import pytest

from tests.plugin.support import FAKE_TORCH, WITHOUT_XDIST, WORKERS, Gpus, Run

LEAKS = """
import pytest, torch

@pytest.fixture(scope="module")
def model():
    torch.state.bytes += 2**30

@pytest.fixture
def cleaned():
    yield
    torch.state.bytes -= 2**25

def test_leak(gpu_lease):
    torch.state.bytes += 2**25

def test_of_wider_scope(gpu_lease, model):
    pass

@pytest.mark.gpu
def test_of_wider_scope_by_mark(model, cleaned):
    torch.state.bytes += 2**25

class Tensor:
    def __init__(self):
        torch.state.bytes += 2**25

    def __del__(self):
        torch.state.bytes -= 2**25

@pytest.fixture
def returned():
    return Tensor()

@pytest.mark.gpu
def test_with_what_a_fixture_returned(returned):
    pass

@pytest.mark.gpu
def test_garbage_of_a_ring():
    ring = Tensor()
    ring.ring = ring

def test_fails(gpu_lease):
    torch.state.bytes += 2**25
    raise ValueError("its traceback keeps the tensors")

def test_without_a_lease():
    torch.state.bytes += 2**25
"""


@pytest.mark.parametrize("workers", WORKERS)
def test_memory_that_is_not_given_back_fails_the_test_by_name(
    run: Run, pytester: pytest.Pytester, gpus: Gpus, workers: tuple[str, ...]
) -> None:
    gpus(1, FAKE_TORCH)
    pytester.makepyfile(LEAKS)
    workers = ("-n1",) if workers == ("-n2",) else workers
    result = run(*workers)
    result.assert_outcomes(passed=6, failed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at teardown of test_leak*",
            "*::test_leak leaves something on its GPU:",
            "  cuda:0: tensors hold 32.0 MiB, 32.0 MiB more than before it: *",
        ]
    )


CHILD = """
import subprocess, sys, pathlib

def pytest_specalign_discover_devices(config):
    pids = [int(path.name) for path in config.rootpath.glob("[0-9]*") if path.name.isdecimal()]
    from specalign.leases import GpuProcess
    return [Device("GPU-0", 0, "made up", (9, 0), 2**37, 2**37, tuple(GpuProcess(pid, "server", 2**30) for pid in pids))]
"""

SERVERS = """
import os, subprocess, sys
import pytest

def start(config):
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    (config.rootpath / str(child.pid)).write_text("")  # it is on the GPU now
    return child

@pytest.fixture(scope="module")
def server(module_gpu_lease, pytestconfig):
    child = start(pytestconfig)
    yield child
    child.communicate()

def test_a_server_of_the_module_may_stay(server):
    pass

left = []

def test_leaves_one(gpu_lease, pytestconfig):
    left.append(start(pytestconfig))

def test_stops_it(gpu_lease, pytestconfig):
    start(pytestconfig).communicate()

def test_the_end():
    left[0].communicate()
"""


def test_a_process_that_stays_on_the_gpu_fails_the_test_by_name(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1, CHILD)
    pytester.makepyfile(SERVERS)
    result = run(*WITHOUT_XDIST)
    result.assert_outcomes(passed=4, errors=1)
    result.stdout.fnmatch_lines(
        ["*ERROR at teardown of test_leaves_one*", "*GPU-0): pid * server (1.0 GiB), which it started, still runs*"]
    )

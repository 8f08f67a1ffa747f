"""Leases of a whole session, taken before anything can import torch, and workers by GPU."""

from __future__ import annotations

import pytest

from tests.plugin.support import WITHOUT_XDIST, WORKERS, Gpus, Run

SESSION = """
import os
import pytest

def test_only_the_leased_are_visible(session_gpu_lease, gpu_lease):
    assert len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")) == 1
    assert [device.uuid for device in session_gpu_lease.devices] == os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    assert gpu_lease.devices == session_gpu_lease.devices

@pytest.mark.parametrize("number", range(8))
def test_write(number, pytestconfig):
    name = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    (pytestconfig.rootpath / f"{name}.{os.environ['CUDA_VISIBLE_DEVICES']}.seen").write_text("")
"""

CONFTEST_SEES_IT = """
import os
assert os.environ.get("CUDA_VISIBLE_DEVICES", "").startswith("GPU-") == ("PYTEST_XDIST_WORKER" in os.environ or not HANDS_OUT)
"""


@pytest.mark.parametrize("workers", WORKERS)
def test_a_session_lease_is_taken_before_conftests_are_read(
    run: Run, pytester: pytest.Pytester, gpus: Gpus, workers: tuple[str, ...]
) -> None:
    gpus(2)
    pytester.makeconftest(CONFTEST_SEES_IT.replace("HANDS_OUT", str(workers == ("-n2",))))
    pytester.makepyfile(SESSION)
    run("-p", "made_up", "--specalign-session-gpus=1", *workers).assert_outcomes(passed=9)
    seen = sorted(path.name for path in pytester.path.glob("*.seen"))
    if workers == ("-n2",):
        assert len({name.split(".")[1] for name in seen}) == 2, seen
    else:
        assert seen == ["alone.GPU-0.seen"]


TORCH = """
import types, sys
cuda = types.SimpleNamespace(is_initialized=lambda: True)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
"""


def test_a_session_lease_after_cuda_is_refused(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1)
    pytester.makepyfile(early=TORCH, test_it="def test_it(): pass\n")
    result = run("-p", "made_up", "-p", "early", "--specalign-session-gpus=1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --specalign-session-gpus: CUDA is initialised in this process already*"])


def test_a_session_lease_that_cannot_be_had_is_one_line(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1)
    pytester.makepyfile("def test_it(): pass\n")
    result = run("-p", "made_up", *WITHOUT_XDIST, SPECALIGN_SESSION_GPUS="2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --specalign-session-gpus=2: asked for 2 GPUs: 1 of 1 GPUs here would do"])


def test_a_worker_without_its_session_lease_fails_its_tests(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    gpus(1)
    pytester.makepyfile("import pytest\n@pytest.mark.parametrize('x', range(4))\ndef test_it(x): pass\n")
    result = run("-p", "made_up", "--specalign-session-gpus=2", "-n2")
    result.assert_outcomes(errors=4)
    result.stdout.fnmatch_lines(["--specalign-session-gpus=2: asked for 2 GPUs: 1 of 1 GPUs here would do"])


def test_collect_only_leases_nothing(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    folder = gpus(1)
    pytester.makepyfile("def test_it(gpu_lease): pass\n")
    run("-p", "made_up", "--specalign-session-gpus=1", "--collect-only", *WITHOUT_XDIST)
    assert not folder.exists()


@pytest.mark.parametrize(("count", "workers"), [(3, 3), (0, 1)])
def test_one_worker_for_each_gpu(run: Run, pytester: pytest.Pytester, gpus: Gpus, count: int, workers: int) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    gpus(count)
    pytester.makepyfile("import pytest\n@pytest.mark.parametrize('x', range(9))\ndef test_it(x): pass\n")
    result = run("-n", "auto", "--specalign-workers=gpus")
    result.assert_outcomes(passed=9)
    result.stdout.fnmatch_lines([f"*{workers} worker*"])

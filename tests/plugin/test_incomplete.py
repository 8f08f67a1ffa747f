"""A run that did not come to its end is incomplete, never clean: lost workers, interrupts, limits, errors of pytest itself."""

from __future__ import annotations

import pytest

from tests.plugin.support import WITHOUT_XDIST, WORKERS, Gpus, Run, failing, section

REQUIRE = "--specalign-gpu-policy=require"


def _verdict(result: pytest.RunResult) -> str:
    lines = section(result)
    return lines[-1] if lines else ""


@pytest.mark.parametrize("policy", ["require", "allow"])
def test_a_worker_that_a_test_kills(run: Run, pytester: pytest.Pytester, gpus: Gpus, policy: str) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    gpus(1)
    pytester.makepyfile(
        """
        import os, pytest

        @pytest.mark.gpu
        def test_dies(): os._exit(3)

        @pytest.mark.gpu
        @pytest.mark.parametrize("x", range(3))
        def test_it(x): pass
        """
    )
    result = run(f"--specalign-gpu-policy={policy}", "-n2", "--max-worker-restart=0")
    assert result.ret != 0
    assert _verdict(result).startswith("verdict: failed; incomplete: 1 worker of xdist lost")
    (named,) = failing(result)["workers of xdist were lost"]
    assert "Not properly terminated" in named


LATE = """
import os

def pytest_sessionfinish(session):
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0":
        os._exit(0)
"""


@pytest.mark.parametrize("policy", ["require", "allow"])
def test_a_worker_that_is_lost_after_its_last_test(
    run: Run, pytester: pytest.Pytester, gpus: Gpus, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    gpus(1, LATE)
    pytester.makepyfile("import pytest\n@pytest.mark.gpu\n@pytest.mark.parametrize('x', range(3))\ndef test_it(x): pass\n")
    result = run(f"--specalign-gpu-policy={policy}", "-n2")
    result.assert_outcomes(passed=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "workers of xdist were lost" in failing(result)
    assert "incomplete: 1 worker of xdist lost" in _verdict(result)
    monkeypatch.delenv("SPECALIGN_LOCK_DIR")
    assert run("-n2").ret == pytest.ExitCode.OK, "xdist by itself would have said so: this test shows nothing"


ENDS = {
    "keyboard": ("raise KeyboardInterrupt", (), 2, "interrupted; 2 GPU tests not reached"),
    "maxfail": ("raise ValueError", ("-x",), 1, "stopping after 1 failures; 1 GPU test not reached"),
    "exit": ("pytest.exit('enough', returncode=7)", (), 7, "enough; 2 GPU tests not reached"),
    "exit without a status": ("pytest.exit('enough', returncode=0)", (), 1, "enough; 2 GPU tests not reached"),
}


@pytest.mark.parametrize("way", ENDS)
def test_a_run_that_is_cut_short(run: Run, pytester: pytest.Pytester, gpus: Gpus, way: str) -> None:
    code, args, ret, reason = ENDS[way]
    gpus(1)
    pytester.makepyfile(f"import pytest\n@pytest.mark.gpu\ndef test_a(): {code}\n@pytest.mark.gpu\ndef test_b(): pass\n")
    result = run(REQUIRE, *args, *WITHOUT_XDIST)
    assert result.ret == ret
    assert reason in _verdict(result)
    assert "incomplete" in _verdict(result)


def test_maxfail_under_xdist(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    gpus(1)
    pytester.makepyfile("import pytest\n@pytest.mark.gpu\n@pytest.mark.parametrize('x', range(9))\ndef test_it(x): assert x\n")
    result = run(REQUIRE, "-n1", "--maxfail=1")
    assert result.ret != 0
    assert "incomplete: stopping after 1 failures" in _verdict(result)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("args", [(), ("--continue-on-collection-errors",)], ids=["stop", "go on"])
def test_a_module_that_cannot_be_collected(
    run: Run, pytester: pytest.Pytester, gpus: Gpus, args: tuple[str, ...], workers: tuple[str, ...]
) -> None:
    gpus(1)
    pytester.makepyfile(test_bad="import no_such_module\n", test_good="import pytest\n@pytest.mark.gpu\ndef test_it(): pass\n")
    result = run(REQUIRE, *args, *workers)
    assert result.ret != 0
    assert "1 module could not be collected" in _verdict(result)


def test_an_internal_error_is_told_although_pytest_prints_no_summary(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1, "def pytest_runtest_logfinish(nodeid):\n    raise RuntimeError('boom')\n")
    pytester.makepyfile("import pytest\n@pytest.mark.gpu\ndef test_it(): pass\n")
    result = run(REQUIRE, *WITHOUT_XDIST)
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    assert _verdict(result) == "verdict: incomplete; incomplete: pytest had an internal error"


def test_no_summary_does_not_silence_what_fails_the_run(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1)
    pytester.makepyfile("import pytest\n@pytest.mark.gpu\ndef test_it(): pytest.skip('why')\n")
    result = run(REQUIRE, "--no-summary", *WITHOUT_XDIST)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert failing(result)["GPU tests did not run"] != []

"""--specalign-gpu-policy: where GPUs are required, a GPU test that did not run fails the run, whatever kept it from running."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specalign.policy import shows_a_gpu
from tests.plugin.support import WITHOUT_XDIST, WORKERS, Gpus, Run, failing, section

SKIPS = """
import unittest
import pytest

@pytest.fixture
def no_server():
    pytest.skip("no server")

@pytest.fixture
def broken():
    raise RuntimeError("no driver")

@pytest.mark.gpu
def test_ran(): pass

@pytest.mark.gpu
@pytest.mark.xfail(reason="known", strict=True)
def test_failed_as_expected(): raise ValueError

@pytest.mark.gpu
@pytest.mark.skipif(True, reason="by mark")
def test_skipif(): pass

@pytest.mark.gpu
def test_in_its_call(): pytest.skip("in its call")

@pytest.mark.gpu
def test_in_a_fixture(no_server): pass

@pytest.mark.gpu
def test_importorskip(): pytest.importorskip("no_such_engine")

@pytest.mark.gpu(count=2)
def test_too_few(): pass

def test_no_mark(gpu_lease): pytest.skip("a lease and no mark")

@pytest.mark.skip(reason="before its lease")
def test_never_leased(specalign_device): pass

def test_asks_while_it_runs(request):
    request.getfixturevalue("gpu_lease")
    pytest.skip("asked late")

@pytest.mark.gpu
@pytest.mark.xfail(run=False, reason="crashes")
def test_not_called(): pass

@pytest.mark.gpu
def test_says_xfail(): pytest.xfail("later")

@pytest.mark.gpu
@pytest.mark.xfail(reason="hides it")
def test_broken_setup(broken): pass

@pytest.mark.gpu
@pytest.mark.parametrize("x", [])
def test_empty(x): pass

class TestOld(unittest.TestCase):
    @pytest.mark.gpu
    @unittest.skip("old style")
    def test_unittest(self): pass

def test_without_gpu(): pytest.skip("nothing to do with GPUs")
"""

NAMED = {
    "test_skipif": "by mark",
    "test_in_its_call": "in its call",
    "test_in_a_fixture": "no server",
    "test_importorskip": "could not import 'no_such_engine'",
    "test_too_few": "asked for 2 GPUs: 1 of 1 GPUs here would do",
    "test_no_mark": "a lease and no mark",
    "test_never_leased": "before its lease",
    "test_asks_while_it_runs": "asked late",
    "test_not_called": "xfail: [NOTRUN] crashes",
    "test_says_xfail": "xfail: later",
    "test_broken_setup": "xfail: hides it",
    "test_empty[NOTSET]": "got empty parameter set",
    "TestOld::test_unittest": "old style",
}
"""Test → how the reason begins."""


@pytest.mark.parametrize("workers", WORKERS)
def test_under_require_each_skip_fails_the_run_by_name(
    run: Run, pytester: pytest.Pytester, gpus: Gpus, workers: tuple[str, ...]
) -> None:
    gpus(1)
    pytester.makepyfile(test_it=SKIPS)
    result = run("--specalign-gpu-policy=require", *workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, skipped=11, xfailed=4)
    (headline, named), *more = failing(result).items()
    assert not more
    assert headline == "GPU tests did not run"
    told = dict(line.removeprefix("test_it.py::").split(": ", 1) for line in named)
    assert told.keys() == NAMED.keys()
    assert all(told[name].startswith(reason) for name, reason in NAMED.items()), told
    assert f"gpu: 2 run, {len(NAMED)} not run" in section(result)
    result.stdout.fnmatch_lines(["specalign gpu_policy: require (--specalign-gpu-policy)", "verdict: failed"])


def test_under_allow_the_same_run_ends_well_and_counts_them(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1)
    pytester.makepyfile(test_it=SKIPS)
    result = run("--specalign-gpu-policy=allow", *WITHOUT_XDIST)
    assert result.ret == pytest.ExitCode.OK
    assert failing(result) == {}
    assert f"gpu: 2 run, {len(NAMED)} not run" in section(result)
    assert "  1 not run: asked for 2 GPUs: 1 of 1 GPUs here would do" in section(result)
    assert section(result)[-1] == "verdict: clean"


if hasattr(pytest, "Subtests"):  # pytest 9

    @pytest.mark.parametrize("workers", WORKERS)
    def test_a_subtest_that_skips_leaves_its_test_unrun(
        run: Run, pytester: pytest.Pytester, gpus: Gpus, workers: tuple[str, ...]
    ) -> None:
        gpus(1)
        pytester.makepyfile(
            test_it="""
            import pytest

            @pytest.mark.gpu
            def test_parts(subtests):
                with subtests.test("a"): pass
                with subtests.test("b"): pytest.skip("no b")

            @pytest.mark.gpu
            def test_ran(): pass
            """
        )
        result = run("--specalign-gpu-policy=require", *workers)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        assert failing(result) == {"GPU tests did not run": ["test_it.py::test_parts: no b"]}


ONE_SKIP = "import pytest\n@pytest.mark.gpu\ndef test_it(): pytest.skip('why')\n@pytest.mark.gpu\ndef test_ran(): pass\n"


@pytest.mark.parametrize(
    ("count", "line", "ret"),
    [
        (2, "specalign gpu_policy: require (auto: 2 GPUs visible, by hook: made up, …)", 1),
        (0, "specalign gpu_policy: allow (auto: no GPU is visible)", 0),
    ],
)
def test_auto_requires_what_is_visible(run: Run, pytester: pytest.Pytester, gpus: Gpus, count: int, line: str, ret: int) -> None:
    gpus(count)
    pytester.makepyfile(ONE_SKIP)
    result = run(*WITHOUT_XDIST)
    assert result.ret == ret
    assert line in result.outlines


def test_auto_goes_by_the_gpus_that_cuda_shows(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(2)
    pytester.makepyfile(ONE_SKIP)
    result = run(*WITHOUT_XDIST, CUDA_VISIBLE_DEVICES="")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["specalign gpu_policy: allow (auto: no GPU is visible: *CUDA_VISIBLE_DEVICES*)"])


@pytest.mark.parametrize(
    ("file", "expected"), [("nvidia0", True), ("dxg", True), ("kfd", True), ("nvidiactl", False), ("null", False)]
)
def test_device_files_tell_a_machine_without_a_gpu(tmp_path: Path, file: str, expected: bool) -> None:
    (tmp_path / file).touch()
    assert shows_a_gpu(tmp_path) is expected


def test_everything_ran_is_a_clean_verdict_under_require(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1)
    pytester.makepyfile("import pytest\n@pytest.mark.gpu\ndef test_it(): pass\n")
    result = run("--specalign-gpu-policy=require", *WITHOUT_XDIST)
    assert result.ret == pytest.ExitCode.OK
    assert section(result) == ["gpu policy: require (--specalign-gpu-policy)", "gpu: 1 run, 0 not run", "verdict: clean"]


NONE = {
    "no GPU test at all": ("def test_cpu(): pass\n", ()),
    "deselected": ("import pytest\n@pytest.mark.gpu\ndef test_gpu(): pass\ndef test_cpu(): pass\n", ("-m", "not gpu")),
    "no test at all": ("", ()),
}


@pytest.mark.parametrize("way", NONE)
@pytest.mark.parametrize("asked", [True, False], ids=["require", "auto"])
def test_no_gpu_test_fails_a_run_that_asked_for_them(
    run: Run, pytester: pytest.Pytester, gpus: Gpus, way: str, asked: bool
) -> None:
    text, args = NONE[way]
    gpus(1)
    pytester.makepyfile(text)
    result = run(*args, *WITHOUT_XDIST, *(["--specalign-gpu-policy=require"] if asked else []))
    if asked:
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        assert "no GPU test ran, and GPUs are required" in failing(result)
    else:
        assert result.ret == (pytest.ExitCode.OK if text else pytest.ExitCode.TESTS_FAILED)
        assert "no GPU test ran, and GPUs are required" not in failing(result)


@pytest.mark.parametrize("policy", ["require", "allow"])
def test_an_account_of_bitwise_tests_too(run: Run, pytester: pytest.Pytester, gpus: Gpus, policy: str) -> None:
    gpus(1)
    pytester.makepyfile(
        """
        import numpy, pytest

        @pytest.mark.bitwise
        def test_runs(bitwise): bitwise.observe("x", numpy.ones(3))

        @pytest.mark.bitwise
        def test_skips(bitwise): pytest.skip("not here")

        @pytest.mark.gpu
        def test_gpu(): pass
        """
    )
    result = run(f"--specalign-gpu-policy={policy}", *WITHOUT_XDIST)
    assert result.ret == pytest.ExitCode.OK
    assert section(result)[1:-1] == [
        "gpu: 1 run, 0 not run",
        "bitwise: 1 run, 1 not run",
        "  1 not run: not here",
        "comparisons: 1, all equal",
    ]


@pytest.mark.parametrize("args", [("--collect-only",), ("--setup-plan",), ("--setup-only",)], ids=" ".join)
def test_without_running_there_is_no_verdict(run: Run, pytester: pytest.Pytester, gpus: Gpus, args: tuple[str, ...]) -> None:
    gpus(1)
    pytester.makepyfile(ONE_SKIP.replace("pytest.skip('why')", "pass"))
    result = run("--specalign-gpu-policy=require", *args, *WITHOUT_XDIST)
    assert result.ret == pytest.ExitCode.OK
    assert section(result) == []
    result.stdout.no_fnmatch_line("specalign gpu_policy: *")


@pytest.mark.parametrize("workers", WORKERS)
def test_an_inert_plugin_has_no_policy(
    run: Run, pytester: pytest.Pytester, gpus: Gpus, monkeypatch: pytest.MonkeyPatch, workers: tuple[str, ...]
) -> None:
    gpus(1)
    monkeypatch.delenv("SPECALIGN_LOCK_DIR")
    pytester.makepyfile(ONE_SKIP)
    result = run("--junit-xml=junit.xml", *workers)
    assert result.ret == pytest.ExitCode.OK
    assert section(result) == []
    assert "specalign" not in (pytester.path / "junit.xml").read_text()

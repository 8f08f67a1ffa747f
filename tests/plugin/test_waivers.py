"""--specalign-waivers: GPU tests that may stay unrun, each with a reason and a day on which that ends."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from pytest_specalign.waivers import Waiver, is_in_reach, read_waivers
from tests.plugin.support import ROOT, WITHOUT_XDIST, WORKERS, Gpus, Run, failing, section

REQUIRE = ("--specalign-gpu-policy=require", "--specalign-waivers=w.toml")
TODAY = datetime.datetime.now(datetime.UTC).date()
DAY = datetime.timedelta(days=1)

TESTS = """
import pytest

@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["fp4", "fp8"])
def test_gemm(kind):
    if kind == "fp4":
        pytest.skip("needs capability 10.0")

@pytest.mark.gpu
def test_ran(): pass
"""


def _waiver(test: str, *, expires: datetime.date = TODAY, reason: str = "the runner has 9.0", more: str = "") -> str:
    return f'[[waiver]]\ntest = "{test}"\nreason = "{reason}"\nexpires = {expires}\n{more}\n'


@pytest.mark.parametrize("workers", WORKERS)
def test_a_waived_test_may_skip_until_its_last_day(
    run: Run, pytester: pytest.Pytester, gpus: Gpus, workers: tuple[str, ...]
) -> None:
    gpus(1)
    pytester.makepyfile(test_it=TESTS)
    (pytester.path / "w.toml").write_text(_waiver("test_it.py::test_gemm[fp4]"))
    result = run(*REQUIRE, *workers)
    assert result.ret == pytest.ExitCode.OK
    assert section(result)[1:] == [
        "gpu: 2 run, 1 not run, 1 of them waived",
        "  1 not run: needs capability 10.0",
        "waived:",
        f"  test_it.py::test_gemm[fp4]: needs capability 10.0 (until {TODAY}: the runner has 9.0)",
        "verdict: clean",
    ]


def test_the_day_after_it_fails(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1)
    pytester.makepyfile(test_it=TESTS)
    (pytester.path / "w.toml").write_text(_waiver("test_it.py::test_gemm*", expires=TODAY - DAY))
    result = run(*REQUIRE, *WITHOUT_XDIST)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    expired = f"w.toml, waiver 1 expired on {TODAY - DAY}"
    assert failing(result) == {
        "GPU tests did not run": [f"test_it.py::test_gemm[fp4]: needs capability 10.0 ({expired})"],
        "waivers have expired": [f"test_it.py::test_gemm*: {expired} (the runner has 9.0)"],
    }


def test_an_expired_waiver_fails_although_its_test_runs_now(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1)
    pytester.makepyfile(test_it=TESTS)
    (pytester.path / "w.toml").write_text(
        _waiver("test_it.py::test_gemm[fp4]") + _waiver("test_it.py::test_ran", expires=TODAY - DAY)
    )
    result = run(*REQUIRE, *WITHOUT_XDIST)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert list(failing(result)) == ["waivers have expired"]


def test_under_allow_waivers_are_read_and_fail_nothing(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1)
    pytester.makepyfile(test_it=TESTS)
    (pytester.path / "w.toml").write_text(_waiver("test_it.py::gone", expires=TODAY - DAY))
    result = run("--specalign-gpu-policy=allow", REQUIRE[1], *WITHOUT_XDIST)
    assert result.ret == pytest.ExitCode.OK
    assert f"note: test_it.py::gone: w.toml, waiver 1 expired on {TODAY - DAY} (the runner has 9.0)" in section(result)


UNMATCHED = {
    "a whole run": ((), True),
    "its folder": (("sub",), True),
    "its file": (("sub/test_it.py",), True),
    "another file": (("test_else.py",), False),
    "one test of its file": (("sub/test_it.py::test_ran",), False),
    "a selection": (("-k", "ran"), False),
}


@pytest.mark.parametrize("way", UNMATCHED)
def test_a_waiver_that_matches_nothing_fails_a_run_that_would_have_had_its_test(
    run: Run, pytester: pytest.Pytester, gpus: Gpus, way: str
) -> None:
    args, fails = UNMATCHED[way]
    gpus(1)
    ran = "import pytest\n@pytest.mark.gpu\ndef test_ran(): pass\n@pytest.mark.gpu\ndef test_other(): pass\n"
    pytester.mkdir("sub").joinpath("test_it.py").write_text(ran)
    pytester.makepyfile(test_else=ran)
    (pytester.path / "w.toml").write_text(_waiver("sub/test_it.py::test_renamed*"))
    result = run(*REQUIRE, *args, *WITHOUT_XDIST)
    told = {"waivers match no GPU test of this run": ["sub/test_it.py::test_renamed*: w.toml, waiver 1 (the runner has 9.0)"]}
    assert failing(result) == (told if fails else {})
    assert result.ret == (pytest.ExitCode.TESTS_FAILED if fails else pytest.ExitCode.OK)


def test_a_waiver_that_is_not_needed_is_a_note(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1)
    pytester.makepyfile(test_it=TESTS)
    (pytester.path / "w.toml").write_text(_waiver("*fp4]") + _waiver("test_it.py::test_ran"))
    result = run(*REQUIRE, *WITHOUT_XDIST)
    assert result.ret == pytest.ExitCode.OK
    assert "note: test_it.py::test_ran: w.toml, waiver 2 is not needed here: 1 test that it covers ran" in section(result)


def test_all_waived_is_no_gpu_test_run(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1)
    pytester.makepyfile(test_it=TESTS)
    (pytester.path / "w.toml").write_text(_waiver("test_it.py::test_gemm[fp4]"))
    result = run(*REQUIRE, *WITHOUT_XDIST, "test_it.py::test_gemm[fp4]")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert failing(result) == {"no GPU test ran, and GPUs are required": ["gpu: 0 run, 1 not run, 1 of them waived"]}


def test_a_waiver_may_hold_for_one_reason_only(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1)
    pytester.makepyfile(test_it=TESTS)
    (pytester.path / "w.toml").write_text(_waiver("*fp4]", more='skip = "needs capability *"'))
    assert run(*REQUIRE, *WITHOUT_XDIST).ret == pytest.ExitCode.OK
    (pytester.path / "w.toml").write_text(_waiver("*fp4]", more='skip = "needs memory *"'))
    result = run(*REQUIRE, *WITHOUT_XDIST)
    why = "needs capability 10.0 (w.toml, waiver 1 holds only for 'needs memory *')"
    assert failing(result) == {"GPU tests did not run": [f"test_it.py::test_gemm[fp4]: {why}"]}


def test_a_module_is_waived_by_its_path(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1)
    pytester.makepyfile(
        test_it=TESTS.replace("10.0", "10"),
        test_mod="import pytest\npytest.importorskip('none_such')\ndef test_it(gpu_lease): pass\n",
    )
    (pytester.path / "w.toml").write_text(_waiver("test_mod.py") + _waiver("*fp4]"))
    result = run(*REQUIRE, *WITHOUT_XDIST)
    assert result.ret == pytest.ExitCode.OK
    assert "gpu: 2 run, 2 not run, 2 of them waived" in section(result)


BAD = {
    "no reason": ('[[waiver]]\ntest = "a"\nexpires = 2027-01-01\n', "w.toml, waiver 1 (a) has no reason"),
    "no expiry": ('[[waiver]]\ntest = "a"\nreason = "b"\n', "w.toml, waiver 1 (a) has no expires"),
    "only a reason": ('[[waiver]]\nreason = "b"\n', "w.toml, waiver 1 (?) has no test and no expires"),
    "empty reason": (_waiver("a", reason=" "), "w.toml, waiver 1: reason is ' ': give a text that is not empty"),
    "empty test": (_waiver(""), "w.toml, waiver 1: test is '': give a text that is not empty"),
    "a quoted day": (
        '[[waiver]]\ntest = "a"\nreason = "b"\nexpires = "2027-01-01"\n',
        "w.toml, waiver 1: expires is '2027-01-01': give a day without quotes, like 2027-03-31",
    ),
    "a time": (
        '[[waiver]]\ntest = "a"\nreason = "b"\nexpires = 2027-01-01T00:00:00\n',
        "waiver 1: expires is datetime.datetime(2027, 1, 1, 0, 0): give a day",
    ),
    "unknown key": (
        _waiver("a", more='until = "x"'),
        "w.toml, waiver 1: 'until' is no key of a waiver: test, reason, expires, skip",
    ),
    "the second": (_waiver("a") + "[[waiver]]\n", "w.toml, waiver 2 (?) has no test and no reason and no expires"),
    "one table": ('[waiver]\ntest = "a"\n', "write each waiver under a line [[waiver]]"),
    "another table": ("[[waivers]]\n", "'waivers': write each waiver under a line [[waiver]], and nothing else"),
    "no TOML": ("[[waiver", "w.toml is no TOML file: "),
    "no text": (b"\xff\xfe", "w.toml is no TOML file: "),
}


@pytest.mark.parametrize("case", BAD)
def test_a_waiver_that_is_not_whole_is_refused_by_name(tmp_path: Path, case: str) -> None:
    text, message = BAD[case]
    (tmp_path / "w.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(pytest.UsageError) as error:
        read_waivers(tmp_path / "w.toml")
    assert message in str(error.value)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_bad_file_stops_the_run_with_one_line(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile("def test_it(): pass\n")
    result = run("--specalign-waivers=none.toml", *workers)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [
        f"ERROR: waivers: cannot read {pytester.path / 'none.toml'}: No such file or directory"
    ]


def test_our_own_waivers_name_tests_that_exist() -> None:
    waivers = read_waivers(ROOT / "tests" / "gpu" / "waivers.toml")
    assert waivers
    for waiver in waivers:
        file, _, name = waiver.test.partition("::")
        wanted = "def test_" if name == "*" else f"def {name.partition('[')[0]}("
        assert wanted in (ROOT / file).read_text("utf-8")


def test_an_empty_file_holds_no_waivers(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text("# none yet\n")
    assert read_waivers(tmp_path / "w.toml") == ()


PATTERNS = [
    ("a.py::test[x-1]", "a.py::test[x-1]", True),
    ("a.py::test[x-1]", "a.py::testx", False),  # brackets are no set of characters
    ("a.py::test?", "a.py::tests", False),
    ("a.py::test*", "a.py::test[a\nb]", True),
    ("a.py::test", "a.py::test[x]", False),
    ("*[x]", "sub/a.py::test[x]", True),
    ("a.py", "a.py::test", False),
]


@pytest.mark.parametrize(("pattern", "nodeid", "expected"), PATTERNS)
def test_what_a_pattern_covers(pattern: str, nodeid: str, expected: bool) -> None:
    assert Waiver(pattern, "r", TODAY, None, "p").covers(nodeid) is expected


REACH = [
    ("tests/a.py::x", ["tests"], True),
    ("tests/a.py::x", ["tests/a.py"], True),
    ("tests/a.py::x", ["."], True),
    ("tests/a.py::x", ["tests/b.py", "tests/a.py"], True),
    ("tests/a.py::x", ["tests/a.py::y"], False),
    ("tests/a.py::x", ["test"], False),
    ("tests/g*/a.py::x", ["tests"], True),
    ("tests/g*/a.py::x", ["tests/gpu"], False),
    ("*::x", ["tests"], False),
    ("*::x", ["."], True),
]


@pytest.mark.parametrize(("pattern", "args", "expected"), REACH)
def test_what_a_run_can_reach(tmp_path: Path, pattern: str, args: list[str], expected: bool) -> None:
    assert is_in_reach(Waiver(pattern, "r", TODAY, None, "p"), args, tmp_path, tmp_path) is expected

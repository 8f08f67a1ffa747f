"""`pytest --pyargs pytest_specalign.suite.pair`: the checks of a pair as tests."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.plugin.support import WORKERS, Run
from tests.unit.checks.scenarios import GPT_OSS, HEAD, ids

SUITE = ("-p", "specalign", "--pyargs", "pytest_specalign.suite.pair")
GROUPS = 2 * 6  # the files and one engine, six concerns each


@pytest.fixture
def pair(pytester: pytest.Pytester) -> list[str]:
    """The options that name a right pair on disk."""
    for name, config in (("draft", HEAD), ("target", GPT_OSS)):
        pytester.mkdir(name).joinpath("config.json").write_text(json.dumps(config))
    return ["--specalign-draft=draft", "--specalign-target=target"]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_right_pair_passes(run: Run, pair: list[str], workers: tuple[str, ...]) -> None:
    run(*SUITE, *pair, "--specalign-engine=sglang==0.5.23", *workers).assert_outcomes(passed=GROUPS)


def test_the_public_crash_fails_by_concern_with_its_sizes(run: Run, pair: list[str]) -> None:
    result = run(*SUITE, *pair, "--specalign-engine=sglang==0.5.16")
    result.assert_outcomes(passed=GROUPS - 2, failed=2)
    result.stdout.fnmatch_lines(["*sglang==0.5.16-ids*", "*5760 and 8640*"])
    assert "Traceback" not in result.stdout.str()


def test_every_engine_is_tested_when_none_is_named(run: Run, pair: list[str]) -> None:
    result = run(*SUITE, *pair, "--collect-only", "-q")
    for engine in ("sglang==0.5.23", "vllm==0.33.0", "tensorrt-llm==1.3.0rc0", "tokenspeed", "eagle"):
        result.stdout.fnmatch_lines([f"*test_engine?{engine}-ids?"])


def test_options_may_come_from_the_ini_file(run: Run, pair: list[str], pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nspecalign_draft = draft\nspecalign_target = target\nspecalign_engine = sglang==0.5.23\n")
    run(*SUITE).assert_outcomes(passed=GROUPS)


def test_a_missing_option_is_one_line(run: Run, pair: list[str]) -> None:
    result = run(*SUITE, pair[0])
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*needs --specalign-draft and --specalign-target*"])


@pytest.mark.parametrize("option", ["--specalign-draft=nosuch/folder/x", "--specalign-engine=nosuch"])
def test_unusable_input_is_one_line(run: Run, pair: list[str], option: str) -> None:
    result = run(*SUITE, *pair, option)
    result.assert_outcomes(errors=1)
    assert len([line for line in result.outlines if line.startswith("specalign: ") and "nosuch" in line and "=" not in line]) == 1
    assert "INTERNALERROR" not in result.stdout.str()


def test_kind_convention_and_pp_size_reach_the_check(run: Run, pair: list[str], pytester: pytest.Pytester) -> None:
    (pytester.path / "draft" / "config.json").write_text(json.dumps(HEAD | ids([3, 19, 30])))
    engine = "--specalign-engine=sglang==0.5.23"
    run(*SUITE, *pair, engine).assert_outcomes(passed=GROUPS)
    run(*SUITE, *pair, engine, "--specalign-convention=boundary").stdout.fnmatch_lines(["*ids-shifted*"])
    run(*SUITE, *pair, engine, "--specalign-pp-size=2").stdout.fnmatch_lines(["*pipeline-drops-ids*"])
    run(*SUITE, *pair, engine, "--specalign-kind=eagle").stdout.fnmatch_lines(["*eagle3-served-as-eagle*"])


def test_warnings_are_told_but_do_not_fail(run: Run, pair: list[str], pytester: pytest.Pytester) -> None:
    (pytester.path / "draft" / "config.json").write_text(json.dumps(HEAD | ids([3, 19, 30])))
    result = run(*SUITE, *pair, "--specalign-engine=sglang==0.5.23", "-rP")
    result.assert_outcomes(passed=GROUPS)
    result.stdout.fnmatch_lines(["*convention-undecidable*"])


def test_junit_properties_name_engine_states_and_findings(run: Run, pair: list[str], pytester: pytest.Pytester) -> None:
    result = run(*SUITE, *pair, "--specalign-engine=sglang==0.5.16", "--junitxml=out.xml")
    assert "warning" not in result.stdout.str().lower().replace("warnings", "")
    cases = list(ElementTree.parse(pytester.path / "out.xml").iter("testcase"))
    assert {case.get("classname") for case in cases} == {"pytest_specalign.suite.pair"}
    case = next(case for case in cases if case.get("name") == "test_engine[sglang==0.5.16-ids]")
    properties = {p.get("name"): p.get("value") for p in case.iter("property")}
    assert properties["specalign_engine"] == "sglang==0.5.16"
    assert properties["specalign_states"] == "[25, 31]"
    assert properties["specalign_meant"] == "[24, 30, 36]"
    assert "ids-shifted" in (properties["specalign_findings"] or "")


def test_the_report_is_written_to_the_artifacts(run: Run, pair: list[str], pytester: pytest.Pytester) -> None:
    run(*SUITE, *pair, "--specalign-engine=sglang==0.5.23", "--specalign-artifacts=out/deep")
    report = json.loads(Path(pytester.path / "out" / "deep" / "check.json").read_text())
    assert (report["schema"], report["ok"]) == ("specalign.check/1", True)


def test_ignored_codes_of_the_project_are_honoured(run: Run, pair: list[str], pytester: pytest.Pytester) -> None:
    reasons = "\n".join(f'{code} = "known"' for code in ("ids-shifted", "state-unreachable", "width-mismatch"))
    (pytester.path / "pyproject.toml").write_text(f"[tool.specalign.ignore]\n{reasons}\n[tool.pytest.ini_options]\n")
    run(*SUITE, *pair, "--specalign-engine=sglang==0.5.16").assert_outcomes(passed=GROUPS)


def test_ignored_codes_of_the_options_are_honoured(run: Run, pair: list[str]) -> None:
    codes = ("ids-shifted", "state-unreachable@sglang", "width-mismatch@sglang==0.5.16")
    ignored = [f"--specalign-ignore={code}" for code in codes]
    run(*SUITE, *pair, "--specalign-engine=sglang==0.5.16", *ignored).assert_outcomes(passed=GROUPS)

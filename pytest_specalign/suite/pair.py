"""`specalign check` as tests: one for each engine and concern, and one for each concern of the files themselves.

    pytest -p specalign --pyargs pytest_specalign.suite.pair --specalign-draft DRAFT --specalign-target TARGET \\
        [--specalign-engine NAME[==VERSION]] [--specalign-kind K] [--specalign-convention C] [--specalign-pp-size N]

A test fails when its engine and concern have a finding of severity error; warnings are told in the test's report sections. The
JUnit properties of every test name its engine, its concern, the states and the findings. With `--specalign-artifacts DIR` the
whole report is written to `DIR/check.json`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_specalign.options import get_option
from specalign.layer_ids.conventions import Convention, format_states
from specalign.layer_ids.findings import CONCERNS, Finding, Severity

if TYPE_CHECKING:
    from specalign.layer_ids.preflight import CheckReport

REPORT: pytest.StashKey[CheckReport] = pytest.StashKey()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One parameter set for each concern, and for each engine and concern."""
    if "concern" not in metafunc.fixturenames:
        return
    report = _report(metafunc.config)
    if "engine" not in metafunc.fixturenames:
        metafunc.parametrize("concern", CONCERNS)
        return
    pairs = [(view.label, concern) for view in report.views for concern in CONCERNS]
    metafunc.parametrize(("engine", "concern"), pairs, ids=[f"{engine}-{concern}" for engine, concern in pairs])


def test_files(concern: str, pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> None:
    """The config and weight headers by themselves, whatever the engine."""
    report = _report(pytestconfig)
    _judge(_of(report, None, concern), request.node, specalign_concern=concern)


def test_engine(engine: str, concern: str, pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> None:
    """What one engine would do with the pair."""
    report = _report(pytestconfig)
    view = next(view for view in report.views if view.label == engine)
    _judge(
        _of(report, engine, concern),
        request.node,
        specalign_engine=engine,
        specalign_concern=concern,
        specalign_states=format_states(view.states),
        specalign_meant="unknown" if report.meaning.states is None else format_states(report.meaning.states),
    )


def _of(report: CheckReport, engine: str | None, concern: str) -> list[Finding]:
    return [f for f in report.of(engine) if f.concern == concern]


def _judge(findings: list[Finding], node: pytest.Item, **properties: str) -> None:
    properties["specalign_findings"] = ",".join(f.code for f in findings)
    node.user_properties.extend(properties.items())
    errors = [f.format() for f in findings if f.severity is Severity.ERROR]
    others = [f.format() for f in findings if f.severity is not Severity.ERROR]
    if others:
        node.add_report_section("call", "specalign findings that do not fail the test", "\n".join(others))
    if errors:
        pytest.fail("\n".join(errors), pytrace=False)


def _report(config: pytest.Config) -> CheckReport:
    """The report of this run, made once.

    Raises:
        pytest.Collector.CollectError: an option is missing or the input is unusable.
    """
    if REPORT not in config.stash:
        config.stash[REPORT] = _check(config)
    return config.stash[REPORT]


def _check(config: pytest.Config) -> CheckReport:
    from specalign.layer_ids.engine_tables import EngineDataError
    from specalign.layer_ids.files import InputError
    from specalign.layer_ids.load import load_draft, load_target
    from specalign.layer_ids.preflight import check
    from specalign.layer_ids.project import read_project_settings

    draft, target = get_option(config, "draft"), get_option(config, "target")
    if draft is None or target is None:
        raise pytest.Collector.CollectError(
            "pytest_specalign.suite.pair needs --specalign-draft and --specalign-target: config files, folders or cached repo ids"
        )
    convention = get_option(config, "convention")
    try:
        report = check(
            load_draft(draft, kind=get_option(config, "kind")).spec,
            load_target(target),
            engines=get_option(config, "engine") or read_project_settings(config.rootpath).engines,
            convention=Convention(convention) if convention else None,
            flag_ids=get_option(config, "flag_ids"),
            pp_size=get_option(config, "pp_size") or 1,
            ignore=_ignored(config),
        )
    except (InputError, EngineDataError, ValueError) as error:
        raise pytest.Collector.CollectError(f"specalign: {error}") from None
    _write(config, report)
    return report


def _ignored(config: pytest.Config) -> dict[str, str]:
    from specalign.layer_ids.project import read_project_settings

    asked = dict.fromkeys(get_option(config, "ignore"), "asked for by --specalign-ignore")
    return {**read_project_settings(config.rootpath).ignore, **asked}


def _write(config: pytest.Config, report: CheckReport) -> None:
    from specalign.layer_ids.files import InputError
    from specalign.layer_ids.report import as_json
    from specalign.layer_ids.rewrite import write_json_atomically

    folder = get_option(config, "artifacts")
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_json_atomically(as_json(report), folder / "check.json")
        except (OSError, InputError) as error:
            raise pytest.Collector.CollectError(f"specalign: --specalign-artifacts={folder}: {error}") from None

"""The end of a run: the verdict is made, told to JUnit, GitHub and the HTML overview, and decides the exit status."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_specalign import github, junit, overview
from pytest_specalign.judgement import End, judge
from pytest_specalign.policy import get_policy
from pytest_specalign.state import JUDGEMENT, RECORD, SELECTION, WAIVERS
from pytest_specalign.waivers import Waiver, is_in_reach

_OK = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


def finish(session: pytest.Session) -> None:
    """Called first of all when the session ends, where there is a record.

    Under a policy that requires GPU tests, and where a worker was lost, a run that would end well ends with status 1.
    """
    config = session.config
    kept = config.stash[RECORD]
    if not config.pluginmanager.hasplugin("dsession"):
        kept.parts.append(config.stash[SELECTION])
    judgement = judge(kept, get_policy(config), config.stash[WAIVERS], _end(session))
    config.stash[JUDGEMENT] = judgement
    if judgement.fails_the_run and session.exitstatus in _OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    junit.tell(config, judgement)
    github.tell(config, judgement)
    if not overview.write(config, judgement) and session.exitstatus in _OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _end(session: pytest.Session) -> End:
    config = session.config
    start = config.invocation_params.dir

    def in_reach(waiver: Waiver) -> bool:
        return is_in_reach(waiver, config.args, config.rootpath, Path(start))

    return End(
        incomplete=tuple(_cut_short(session)),
        tests_failed=session.exitstatus == pytest.ExitCode.TESTS_FAILED or session.testsfailed > 0,
        today=datetime.datetime.now(datetime.UTC).date(),
        in_reach=in_reach,
    )


def _cut_short(session: pytest.Session) -> Iterator[str]:
    """Why pytest ended before its time, in its own words where it has some."""
    said = session.config.stash[RECORD].stopped or session.shouldfail or session.shouldstop
    status = session.exitstatus
    if status == pytest.ExitCode.INTERNAL_ERROR:
        yield "pytest had an internal error"
    elif said:
        yield str(said) if isinstance(said, str) else "stopped early"
    elif status == pytest.ExitCode.NO_TESTS_COLLECTED:
        yield "no test was run"
    elif status not in (*_OK, pytest.ExitCode.TESTS_FAILED):
        yield f"ended early, with exit status {int(status)}"

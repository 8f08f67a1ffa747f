"""The verdict as properties of the JUnit file's test suite, so that a CI job can read it without the log.

What a test compared stands among the test's own properties (`verdicts.PROPERTY`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from _pytest.junitxml import xml_key  # what pytest's own fixture record_testsuite_property uses

from pytest_specalign.judgement import Judgement


def tell(config: pytest.Config, judgement: Judgement) -> None:
    """Add the properties, if a JUnit file is being written."""
    xml = config.stash.get(xml_key, None)
    if xml is not None:
        for name, value in properties(judgement):
            xml.add_global_property(name, value)


def properties(judgement: Judgement) -> Iterator[tuple[str, str]]:
    """Name and value: `specalign_gpu_run` is there also where it is 0, so that a gate need not guess."""
    yield "specalign_verdict", judgement.verdict
    yield "specalign_gpu_policy", judgement.policy.chosen
    yield "specalign_gpu_policy_why", judgement.policy.why
    accounts = {account.mark: account for account in judgement.accounts}
    for mark in dict.fromkeys(("gpu", *accounts)):
        account = accounts.get(mark)
        numbers = ("run", "failed", "skipped", "waived", "deselected")
        for number in numbers:
            yield f"specalign_{mark}_{number}", str(getattr(account, number) if account is not None else 0)
        for reason, count in account.unrun if account is not None else ():
            yield f"specalign_{mark}_unrun", f"{count}: {reason}"
    yield "specalign_comparisons", str(len(judgement.comparisons))
    yield "specalign_divergences", str(len(judgement.divergences))
    yield from (("specalign_incomplete", reason) for reason in judgement.incomplete)
    yield from (("specalign_problem", f"{problem.code}: {problem.format()}") for problem in judgement.problems)
    yield from (("specalign_waived", f"{nodeid}: {waiver.format()}") for nodeid, _, waiver in judgement.waived)

"""`RoutingContract` as a user writes it: several in one session, failing, incomplete, and with hooks that are not given."""

from __future__ import annotations

import pytest

from tests.plugin.support import WORKERS, Run

pytest.importorskip("hypothesis")
pytest.importorskip("torch")

HEAD = """
import torch
from hypothesis import settings
from pytest_specalign.contracts import RoutingContract
from specalign.routing.reference import gather_reference, scatter_backward_reference

FAST = settings(max_examples=2, derandomize=True, database=None, deadline=None)


def unfused(rows, positions, weights):
    total = torch.zeros(len(positions), rows.shape[1])
    for slot in range(positions.shape[1]):
        place = positions[:, slot]
        for token in (place >= 0).nonzero()[:, 0]:
            total[token] += rows[place[token]].float() * weights[token, slot]
    return total.to(rows.dtype)
"""

ONE = """
class Test{number}(RoutingContract):
    settings = FAST
    gather = staticmethod({gather})
    scatter_backward = staticmethod(scatter_backward_reference)
"""

PROPERTIES = 16
LOOKED_AT = 4
"""Of a class with two hooks on a CPU: one for each, the runs, and the inputs."""


@pytest.mark.parametrize("workers", WORKERS)
def test_several_classes_pass_in_one_session_and_what_was_not_looked_at_is_skipped_with_its_reason(
    run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    pytester.makepyfile(HEAD + "".join(ONE.format(number=number, gather="gather_reference") for number in range(2)))
    result = run(*workers, "-rs")
    result.assert_outcomes(passed=2 * LOOKED_AT, skipped=2 * (PROPERTIES - LOOKED_AT))
    result.stdout.fnmatch_lines_random(
        [
            "SKIPPED * not looked at: Test1 gives no topk",
            "SKIPPED * not looked at: Test0 gives no scatter or gather_backward",
            "SKIPPED * not looked at: Test0.checks does not say 'range'",
            "SKIPPED * not looked at: offsets beyond 2^31 need 12.0 GiB on a GPU, and the device is cpu",
        ]
    )


def test_a_failure_says_what_where_by_how_much_which_fault_and_what_next(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(HEAD + ONE.format(number=1, gather="unfused"))
    result = run("-p", "no:xdist")
    result.assert_outcomes(failed=1, passed=LOOKED_AT - 1, skipped=PROPERTIES - LOOKED_AT)
    result.stdout.fnmatch_lines(
        [
            "*gather(rows, positions, weights) goes wrong: multiply-then-add",
            "E *case:      T=* k=* E=3 H=* *",
            "E *positions: [[][[]*]]",
            "E *got:       token rows[[]0, *]: * (0x*) in place of * (0x*); * of * elements",
            "E *looks like: multiply-then-add (no public report): the product is rounded before it is added",
            "E *next: Use an explicit FMA (`tl.fma`, `fmaf`), and compile so that nothing else is fused.",
        ]
    )


def test_an_incomplete_class_is_one_line_and_others_still_run(run: Run, pytester: pytest.Pytester) -> None:
    bad = "class TestNothing(RoutingContract):\n    pass\n"
    pytester.makepyfile(test_bad=HEAD + bad, test_good=HEAD + ONE.format(number=1, gather="gather_reference"))
    result = run("-p", "no:xdist", "--continue-on-collection-errors")
    result.assert_outcomes(passed=LOOKED_AT, skipped=PROPERTIES - LOOKED_AT, errors=1)
    result.stdout.fnmatch_lines(["TestNothing lacks `def gather(self, rows, positions, weights)`, or one of *"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_without_torch_one_line_names_the_extra(run: Run, pytester: pytest.Pytester) -> None:
    run.hide("torch")
    pytester.makepyfile("from pytest_specalign.contracts import RoutingContract\n")
    result = run("-p", "no:xdist")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*RoutingContract need torch: pip install 'pytest-specalign[[]torch]'"])

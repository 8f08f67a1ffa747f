"""The plugin's section of the summary: whether there is one, what it names in full and what it shortens."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_specalign.judgement import Judgement, MarkAccount, Problem
from pytest_specalign.policy import Policy
from pytest_specalign.summary import lines, says_something
from tests.plugin import made_judgements as made
from tests.plugin.support import WORKERS, Gpus, Run, section

ALLOW = Policy("allow", True, "--specalign-gpu-policy")
AUTO = Policy("require", False, "auto: 1 GPU visible")
NONE = made.changed(accounts=(), comparisons=())

SILENT = {
    "all ran, and nobody requires it": made.changed(policy=ALLOW),
    "no test of ours": made.changed(policy=ALLOW, accounts=(), comparisons=()),
    "no test of ours, where a GPU is visible": made.changed(policy=AUTO, accounts=(), comparisons=()),
    "other tests failed": made.changed(policy=ALLOW, tests_failed=True, accounts=(), comparisons=()),
    "other tests were cut short": made.changed(policy=ALLOW, incomplete=("interrupted",), accounts=(), comparisons=()),
}
TOLD = {
    "GPU tests are required": made.CLEAN,
    "GPU tests ran where a GPU is visible": made.changed(policy=AUTO),
    "no GPU test, and they are required": NONE,
    "a skip": made.changed(policy=ALLOW, accounts=(MarkAccount("gpu", 1, 0, (("why", 1),)),)),
    "a deselection": made.changed(policy=ALLOW, accounts=(MarkAccount("gpu", 1, 0, (), deselected=1),)),
    "a divergence": made.different(Path("/")),
    "a note": made.changed(policy=ALLOW, notes=("a note",)),
    "a lost worker": made.changed(policy=ALLOW, accounts=(), comparisons=(), problems=(Problem("worker-lost", "gw0", "lost"),)),
    "cut short": made.changed(policy=ALLOW, incomplete=("interrupted",)),
}


@pytest.mark.parametrize("case", SILENT)
def test_there_is_nothing_to_say(case: str) -> None:
    assert not says_something(SILENT[case])


@pytest.mark.parametrize("case", TOLD)
def test_there_is_something_to_say(case: str) -> None:
    assert says_something(TOLD[case])


def _text(judgement: Judgement) -> list[str]:
    return [text for text, _ in lines(judgement)]


def test_what_fails_the_run_is_named_in_full_and_the_rest_is_shortened() -> None:
    found = _text(made.big(Path("/")))
    assert sum("gpu-skipped" in text or ": no GPU was found" in text for text in found) == 3000
    assert sum("::test_" in text and "not equal" not in text and "no GPU" not in text for text in found) == 20
    assert "  … and 2480 more" in found


def test_each_kind_of_problem_says_what_to_do_next(tmp_path: Path) -> None:
    found = _text(made.different(tmp_path))
    headlines = [number for number, text in enumerate(found) if text.startswith("FAILED: ")]
    assert len(headlines) == 2
    assert all(found[number + 2].startswith("  next: ") for number in headlines)


VERDICTS = {
    "clean": made.CLEAN,
    "incomplete": made.incomplete(),
    "failed": made.different(Path("/")),
}


@pytest.mark.parametrize("word", VERDICTS)
def test_the_verdict_is_the_last_line(word: str) -> None:
    judgement = VERDICTS[word]
    assert judgement.verdict == word
    assert judgement.ok == (word == "clean")
    assert _text(judgement)[-1].startswith(f"verdict: {word}")
    assert judgement.format().startswith(word)


def test_a_divergence_that_its_test_expected_fails_nothing() -> None:
    control = made.different(Path("/")).expected
    assert made.changed(comparisons=control).verdict == "clean"
    assert "comparisons: 1, 1 not equal in tests that passed" in _text(made.changed(comparisons=control))


@pytest.mark.parametrize("workers", WORKERS)
def test_a_name_cannot_start_a_line_of_its_own(run: Run, pytester: pytest.Pytester, gpus: Gpus, workers: tuple[str, ...]) -> None:
    gpus(1)
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.gpu
        def test_it(): pytest.skip("why\\nverdict: clean\\x1b[31m")
        """
    )
    result = run("--specalign-gpu-policy=allow", *workers)
    assert section(result)[1:] == ["gpu: 0 run, 1 not run", r"  1 not run: why\nverdict: clean\x1b[31m", "verdict: clean"]
    assert "\x1b" not in result.stdout.str()

"""Contracts as a user writes them: many in one session, inherited, incomplete, failing, and without hypothesis."""

from __future__ import annotations

import pytest

from tests.plugin.support import WORKERS, Run

pytest.importorskip("hypothesis")

HEAD = """
from hypothesis import settings
from pytest_specalign.contracts import ConfigIdsContract, LayerIdContract
from specalign.layer_ids import RULES, LayerIdError, eagle3_boundaries, dflash_boundaries

FAST = settings(max_examples=3, derandomize=True, database=None, deadline=None)
"""

ONE = """
class Test{number}(LayerIdContract):
    rule = {rule!r}
    settings = FAST

    def convert(self, layer_ids, num_layers):
        return list(RULES[self.rule].states(layer_ids, num_layers))
"""

RULES = ("boundary", "output", "as_is_if_max_is_n", "plus_one_if_first_is_1", "output_default_shifted")
PROPERTIES = 9

DROPPING = """
class TestDropping(LayerIdContract):
    rule = "as_is_if_max_is_n"
    settings = FAST

    def convert(self, layer_ids, num_layers):
        if layer_ids is None:
            return [2, num_layers // 2, num_layers - 3]
        return [k + 1 for k in layer_ids if k + 1 < num_layers]
"""


@pytest.mark.parametrize("workers", WORKERS)
def test_twenty_contracts_pass_in_one_session(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    classes = [ONE.format(number=number, rule=RULES[number % len(RULES)]) for number in range(20)]
    pytester.makepyfile(HEAD + "\n".join(classes))
    run(*workers).assert_outcomes(passed=20 * PROPERTIES)


def test_each_class_of_a_chain_runs_every_property_on_its_own_code(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        HEAD
        + ONE.format(number="Leaf", rule="boundary")
        + """
class TestSame(TestLeaf):
    pass

class TestOther(TestLeaf):
    rule = "output"

class TestWithout(TestLeaf):
    test_keeps_the_declared_order = None

class TestBroken(TestLeaf):
    settings = settings(max_examples=30, derandomize=True, database=None, deadline=None)

    def convert(self, layer_ids, num_layers):
        return super().convert(layer_ids, num_layers)[::-1]
"""
    )
    result = run("-p", "no:xdist", "-rA")
    result.assert_outcomes(passed=4 * PROPERTIES - 1 + 5, failed=PROPERTIES - 5)
    result.stdout.fnmatch_lines(["FAILED *TestBroken::test_matches_the_rule*"])
    result.stdout.no_fnmatch_line("FAILED *Test[LSOW]*")


def test_the_two_dflash_properties_exist_only_with_convert_dflash(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        HEAD
        + """
class TestOurs(LayerIdContract):
    rule = "as_is_if_max_is_n"
    settings = FAST

    def convert(self, layer_ids, num_layers):
        return eagle3_boundaries(layer_ids, num_layers)

    def convert_dflash(self, layer_ids, num_layers):
        return dflash_boundaries(layer_ids, num_layers)
"""
    )
    run("-p", "no:xdist").assert_outcomes(passed=PROPERTIES + 2)


INCOMPLETE = {
    "TestNoRule": ("def convert(self, layer_ids, num_layers): ...", "lacks `rule`: set it to a Rule or to one of boundary, *"),
    "TestNoConvert": ("rule = 'boundary'", "lacks `def convert(self, layer_ids, num_layers)`: *"),
    "TestUnknown": ("rule = 'sideways'; convert = len", ".rule = 'sideways': there are boundary, *"),
    "TestNumber": ("rule = 5; convert = len", ".rule = 5 is neither a Rule nor the name of one"),
    "TestRange": ("rule = 'output'; num_layers_range = (9, 8); convert = len", ".num_layers_range = (9, 8): *"),
}


@pytest.mark.parametrize("workers", WORKERS)
def test_an_incomplete_class_is_one_line_and_others_still_run(
    run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    bad = [f"class {name}(LayerIdContract):\n    {body}\n" for name, (body, _) in INCOMPLETE.items()]
    pytester.makepyfile(test_bad=HEAD + "\n".join(bad), test_good=HEAD + ONE.format(number=1, rule="boundary"))
    result = run(*workers, "--continue-on-collection-errors")
    result.assert_outcomes(passed=PROPERTIES, errors=len(INCOMPLETE))
    for name, (_, message) in INCOMPLETE.items():
        result.stdout.fnmatch_lines([f"{name}{'' if message[0] == '.' else ' '}{message}"])
        result.stdout.fnmatch_lines([f"ERROR test_bad.py::{name}*"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_an_incomplete_config_contract_is_one_line(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        HEAD
        + """
class TestNothing(ConfigIdsContract):
    pass

class TestNoSources(ConfigIdsContract):
    sources = "eagle_config"
    def read_layer_ids(self, config): ...
"""
    )
    result = run("-p", "no:xdist")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["TestNothing lacks `def read_layer_ids(self, config)`: *"])
    result.stdout.fnmatch_lines(["TestNoSources.sources = 'eagle_config': dotted keys in order of precedence, *"])


def test_a_failure_says_what_where_which_fault_and_what_next(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(HEAD + DROPPING)
    result = run("-p", "no:xdist", "-k", "test_matches_the_rule")
    result.assert_outcomes(failed=1, deselected=PROPERTIES - 1)
    result.stdout.fnmatch_lines(
        [
            "E * convert([[]24, 30, 36], num_layers=36) breaks the rule 'as_is_if_max_is_n': one-added-and-the-rest-dropped",
            "E *expected: [[]24, 30, 36]",
            "E *got: *[[]25, 31]",
            "E *first difference: position 0: 25 in place of 24; 2 states, 3 expected",
            "E *looks like: one-added-and-the-rest-dropped (sglang issue #32226, sglang PR #32334): *",
            "E *next: *",
            "E *Failing explicit example: *",
        ]
    )


def test_what_hypothesis_finds_shrinks_to_a_small_call(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(HEAD + DROPPING.replace("FAST", "settings(derandomize=True, database=None)"))
    result = run("-p", "no:xdist", "-k", "reaches_the_last_boundary")
    result.stdout.fnmatch_lines(["E * convert([[][67]], num_layers=7) breaks the rule *"])


def test_examples_of_the_class_always_run(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        HEAD
        + ONE.format(number=1, rule="boundary").replace(
            "settings = FAST",
            "settings = FAST\n    examples = [([5, 3, 77], 101)]\n    seen = set()",
        )
        + """
    def convert(self, layer_ids, num_layers):
        self.seen.add((str(layer_ids), num_layers))
        return list(RULES["boundary"].states(layer_ids, num_layers))


def test_examples_were_seen():
    assert ("[5, 3, 77]", 101) in Test1.seen
    assert ("[24, 30, 36]", 36) in Test1.seen
"""
    )
    run("-p", "no:xdist").assert_outcomes(passed=PROPERTIES + 1)


def test_a_target_of_one_depth_is_asked_for_no_other(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        HEAD
        + """
class TestFixed(LayerIdContract):
    rule = "boundary"
    num_layers_range = (36, 36)
    shallow_range = None
    settings = FAST

    def convert(self, layer_ids, num_layers):
        if num_layers != 36:
            raise RuntimeError("the model has 36 layers")
        return RULES["boundary"].states(layer_ids, num_layers)
"""
    )
    run("-p", "no:xdist").assert_outcomes(passed=PROPERTIES - 1)


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("module", ["pytest_specalign.contracts", "pytest_specalign.strategies"])
def test_without_hypothesis_one_line_names_the_extra(
    run: Run, pytester: pytest.Pytester, workers: tuple[str, ...], module: str
) -> None:
    # Not `run.hide`: pytest's rewriting hook, which finds what hypothesis ships, stands before a finder of ours.
    pytester.makeconftest("import sys\nsys.modules['hypothesis'] = None")
    pytester.makepyfile(f"import {module}\n\ndef test_nothing(): ...\n")
    result = run(*workers, "-p", "no:hypothesispytest")
    assert result.ret != 0
    result.stdout.fnmatch_lines(
        [
            "*ERROR collecting test_without_hypothesis_one_line_names_the_extra.py*",
            "pytest_specalign's contracts and strategies need hypothesis: pip install 'pytest-specalign[[]hypothesis]'",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")

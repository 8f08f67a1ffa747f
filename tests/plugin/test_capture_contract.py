"""The contracts on torch as a user writes them: many in one session, incomplete, failing, without torch; and the fixture."""

from __future__ import annotations

import pytest

from tests.plugin.support import WORKERS, Run

pytest.importorskip("hypothesis")
pytest.importorskip("torch")

HEAD = """
import torch
from hypothesis import settings
from pytest_specalign.contracts import CaptureContract, DraftNormContract
from specalign.layer_ids import POST_NORM

FAST = settings(max_examples=2, derandomize=True, database=None, deadline=None)
"""

LOOP = """
def loop(probe, states):
    if len(set(states)) < len(states) or any(not 0 <= s <= probe.num_layers for s in states):
        raise ValueError(str(states))
    hidden, residual = probe.embed_tokens(probe.tokens), None
    found = {0: hidden.clone()}
    for i, layer in enumerate(probe.layers):
        out = layer(hidden, residual) if probe.layout.style == "residual" else (layer(hidden), None)
        hidden, residual = out
        found[i + 1] = hidden.clone() if residual is None else hidden + residual
    return [found[s] for s in states]
"""

ONE = """
class Test{number}(CaptureContract):
    settings = FAST
    num_layers = {layers}

    def capture(self, probe, states):
        return loop(probe, states)
"""

CAPTURE_PROPERTIES = 10
NORM_PROPERTIES = 11

NORM = """
class TestNorm{number}(DraftNormContract):
    settings = FAST

    def fc_input(self, config, weights, states):
        nested = config["eagle_config"]
        on = lambda name: config.get(name) if nested.get(name) is None else nested[name]
        x, eps = torch.cat(states, -1), config["rms_norm_eps"]
        norm = torch.nn.functional.rms_norm
        if on("norm_before_fc"):
            x = norm(x, x.shape[-1:], weights["input_norm.weight"], eps)
        if on("fc_norm"):
            parts = x.chunk(len(states), -1)
            x = torch.cat([norm(c, c.shape[-1:], weights[f"fc_norm.{{i}}.weight"], eps) for i, c in enumerate(parts)], -1)
        return x
"""

DROPPING = """
class TestDropping(CaptureContract):
    settings = FAST

    def capture(self, probe, states):
        states = [s for s in states if s != probe.num_layers]
        return loop(probe, states)
"""


@pytest.mark.parametrize("workers", WORKERS)
def test_several_contracts_pass_in_one_session(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    captures = [ONE.format(number=number, layers=6 + number) for number in range(3)]
    norms = [NORM.format(number=number) for number in range(2)]
    pytester.makepyfile(HEAD + LOOP + "\n".join([*captures, *norms]))
    run(*workers).assert_outcomes(passed=3 * CAPTURE_PROPERTIES + 2 * NORM_PROPERTIES)


def test_optional_properties_exist_only_with_their_method(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        HEAD
        + LOOP
        + ONE.format(number=1, layers=8)
        + """
class TestMore(Test1):
    post_norm = False

    def capture_stages(self, stages, states):
        return loop(_joined(stages), states)

    def capture_ranks(self, ranks, states):
        return ranks.run(lambda rank: [rank.expected(state) for state in states])

class TestTokens(DraftNormContract):
    settings = FAST

    def map_tokens(self, d2t, draft_tokens):
        return draft_tokens + d2t[draft_tokens]

class TestNone(TestMore):
    capture_stages = CaptureContract.capture_stages
    in_place = ("never",)
    test_keeps_the_declared_order = None


class _joined:
    def __init__(self, stages):
        self.layout, self.tokens, self.embed_tokens = stages[0].layout, stages[0].tokens, stages[0].embed_tokens
        self.num_layers, self.layers = stages[0].num_layers, [layer for stage in stages for layer in stage.layers]
"""
    )
    result = run("-p", "no:xdist", "-v")
    result.assert_outcomes(passed=CAPTURE_PROPERTIES + (CAPTURE_PROPERTIES + 2) + 1 + (CAPTURE_PROPERTIES - 1))
    result.stdout.fnmatch_lines(["*TestMore::test_pipeline_stages_lose_nothing PASSED*"])
    result.stdout.no_fnmatch_line("*TestNone::test_pipeline_stages_lose_nothing*")
    result.stdout.no_fnmatch_line("*test_post_norm_is_the_normed_state*")


INCOMPLETE = {
    "TestNoCapture": ("CaptureContract", "pass", " lacks `def capture(self, probe, states)`: *"),
    "TestOrder": ("CaptureContract", "order = 'sideways'; capture = loop", ".order = 'sideways': one of config, layer"),
    "TestStyles": ("CaptureContract", "styles = ('plane',); capture = loop", ".styles = ('plane',): some of plain, residual"),
    "TestShallow": ("CaptureContract", "num_layers = 2; capture = loop", ".num_layers = 2: *6..48*"),
    "TestNothing": ("DraftNormContract", "pass", " lacks `def fc_input(self, config, weights, states)`, or one of *"),
    "TestBoth": ("DraftNormContract", "both = 'maybe'; fc_input = loop", ".both = 'maybe': 'apply' or 'refuse'"),
    "TestPlaces": ("DraftNormContract", "fc_norm_places = 'fc_norm'; fc_input = loop", ".fc_norm_places = 'fc_norm': *"),
}


@pytest.mark.parametrize("workers", WORKERS)
def test_an_incomplete_class_is_one_line_and_others_still_run(
    run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    bad = [f"class {name}({base}):\n    {body}\n" for name, (base, body, _) in INCOMPLETE.items()]
    good = HEAD + LOOP + ONE.format(number=1, layers=8)
    pytester.makepyfile(test_bad=HEAD + LOOP + "\n".join(bad), test_good=good)
    result = run(*workers, "--continue-on-collection-errors")
    result.assert_outcomes(passed=CAPTURE_PROPERTIES, errors=len(INCOMPLETE))
    for name, (_, _, message) in INCOMPLETE.items():
        result.stdout.fnmatch_lines([f"{name}{message}"])
    result.stdout.no_fnmatch_line("*Traceback*")
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_a_failure_says_what_where_by_how_much_which_fault_and_what_next(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(HEAD + LOOP + DROPPING)
    result = run("-p", "no:xdist", "-k", "test_reaches_the_last_boundary")
    result.assert_outcomes(failed=1, deselected=CAPTURE_PROPERTIES - 1)
    result.stdout.fnmatch_lines(
        [
            "E * capture(probe, [[]*8]) goes wrong: boundary-n-dropped",
            "E *probe: *8 blocks of *, float32, 5 rows on cpu",
            "E *declared: order config, duplicates refuse, boundary n reached, POST_NORM never asked for",
            "E *expected: [[]*boundary 8]",
            "E *got: *",
            "E *first difference: ? states in place of ?",
            "E *looks like: boundary-n-dropped (vllm #46973, *): *",
            "E *next: Test once more after the loop, before the final norm.",
        ]
    )


def test_a_wrong_value_is_measured_and_the_state_that_it_is_is_named(run: Run, pytester: pytest.Pytester) -> None:
    late = LOOP.replace("found[s] for s in states", "found[min(s + 1, probe.num_layers)] for s in states")
    pytester.makepyfile(HEAD + late + ONE.format(number=1, layers=8))
    result = run("-p", "no:xdist", "-k", "test_captures_what_was_asked")
    result.stdout.fnmatch_lines(
        ["E *first difference: position 0, boundary *: max abs difference 5 at row *, channel *, which is boundary *"]
    )


WITHOUT_TORCH = {
    "CaptureContract": "from pytest_specalign.contracts import CaptureContract",
    "DraftNormContract": "from pytest_specalign.contracts import DraftNormContract",
    "probe": "import pytest_specalign.contracts.probe",
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("line", WITHOUT_TORCH.values(), ids=WITHOUT_TORCH)
def test_without_torch_one_line_names_the_extra(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...], line: str) -> None:
    run.hide("torch")
    pytester.makepyfile(f"{line}\n\ndef test_nothing(): ...\n")
    result = run(*workers)
    assert result.ret != 0
    result.stdout.fnmatch_lines(
        ["CaptureContract, DraftNormContract and RoutingContract need torch: pip install 'pytest-specalign[[]torch]'"]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_the_other_contracts_need_no_torch(run: Run, pytester: pytest.Pytester) -> None:
    run.hide("torch")
    pytester.makepyfile("from pytest_specalign.contracts import ConfigIdsContract, LayerIdContract\n\ndef test_nothing(): ...\n")
    run().assert_outcomes(passed=1)


FIXTURE = """
import pytest


def test_capture(capture_boundaries):
    import torch
    from pytest_specalign.contracts.probe import ProbeLayout, ProbeModel
    from specalign.layer_ids import POST_NORM

    probe = ProbeModel(ProbeLayout(8, "residual", "scratch"))
    last, first, normed = capture_boundaries(probe, [8, 0, POST_NORM], probe.tokens)
    assert torch.equal(last, probe.expected(8))
    assert torch.equal(first, probe.expected(0))
    assert torch.equal(normed, probe.expected(POST_NORM))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in probe.modules())


def test_keywords_reach_the_model(capture_boundaries):
    from pytest_specalign.contracts.probe import ProbeLayout, ProbeModel

    probe = ProbeModel(ProbeLayout(8))
    assert capture_boundaries(probe, [3], tokens=probe.tokens)[0].equal(probe.expected(3))
    with pytest.raises(ValueError, match="9"):
        capture_boundaries(probe, [9], probe.tokens)
"""


@pytest.mark.parametrize("workers", WORKERS)
def test_the_fixture_captures_and_leaves_no_hook(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(FIXTURE)
    run(*workers).assert_outcomes(passed=2)


def test_the_fixture_without_torch_fails_in_one_line(run: Run, pytester: pytest.Pytester) -> None:
    run.hide("torch")
    pytester.makepyfile("def test_capture(capture_boundaries): ...\n")
    result = run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["the fixture capture_boundaries needs torch: pip install 'pytest-specalign[[]torch]'"])

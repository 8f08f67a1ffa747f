"""SGLang's setters and forwards, for Llama and GPT-OSS: which states arrive in front of a draft head, bit for bit which ones.

The states are compared with the block outputs of transformers' models of the same weights; which ones should arrive comes from
`specalign check` (what this engine does) and from the case (what the head was trained on).
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Sequence
from typing import Final

import pytest
import torch

from specalign.layer_ids import Convention
from specalign.layer_ids.captured import capture_ids
from specalign.layer_ids.draft_config import parse_draft
from specalign.layer_ids.engines import load_engines
from specalign.layer_ids.preflight import CheckReport, check
from specalign.layer_ids.target_config import parse_target
from tests.conformance.sglang_cpu.draft import HEAD
from tests.conformance.sglang_cpu.targets import LAYERS, Target, captured, gpt_oss_config, handed_on, llama_config, make_target

N: Final = LAYERS
TOLERANCE: Final = 1e-5
ENGINE: Final = f"sglang=={importlib.metadata.version('sglang')}"
ARCHITECTURES: Final = {"llama": "LlamaForCausalLM", "gpt_oss": "GptOssForCausalLM"}
CONFIGS: Final = {"llama": llama_config, "gpt_oss": gpt_oss_config}
OUTPUT, BOUNDARY = Convention.OUTPUT, Convention.BOUNDARY


@dataclasses.dataclass(frozen=True)
class Case:
    """Ids in a head's config.

    Attributes:
        convention: what its trainer meant by them.
        trained_on: the boundaries that it was therefore trained on, in the order of the concatenation, by hand.
        deviations: family → code of the finding that says why this version does not hand these on.
    """

    ids: tuple[int, ...] | None
    convention: Convention | None
    trained_on: tuple[int, ...]
    deviations: dict[str, str] = dataclasses.field(default_factory=dict)


CASES: Final = (
    Case(None, None, (2, N // 2, N - 3)),
    Case((0, 1, 3), OUTPUT, (1, 2, 4)),
    Case((1, 3, 4), OUTPUT, (2, 4, 5)),
    Case((2, 4, 5), BOUNDARY, (2, 4, 5), {"llama": "ids-shifted", "gpt_oss": "ids-shifted"}),
    Case((0, 1, 3), BOUNDARY, (0, 1, 3), {"llama": "ids-shifted", "gpt_oss": "ids-shifted"}),
    Case((1, 2, N), BOUNDARY, (1, 2, N), {"llama": "state-unreachable"}),
    Case((0, 2, N), BOUNDARY, (0, 2, N), {"llama": "state-unreachable"}),
    Case((0, 3, N - 1), OUTPUT, (1, 4, N), {"llama": "state-unreachable"}),
    Case((N - 1,), OUTPUT, (N,), {"llama": "state-unreachable"}),
    Case((0, 0, 2), OUTPUT, (1, 1, 3), {"llama": "ids-collapsed", "gpt_oss": "ids-collapsed"}),
    Case((4, 0, 2), OUTPUT, (5, 1, 3), {"llama": "ids-reordered", "gpt_oss": "ids-reordered"}),
    Case((N, 3, 1), BOUNDARY, (N, 3, 1), {"llama": "state-unreachable", "gpt_oss": "ids-reordered"}),
)
ODD_IDS: Final = ((-1, 0, 2), (-2, 0, 2), (1, 2, N + 1), (N, 1, 1))
"""Ids that no head should have; the engine takes them all the same."""


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return {family: make_target(make(), tmp_path_factory.mktemp(family)) for family, make in CONFIGS.items()}


@pytest.fixture(params=ARCHITECTURES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def checked(family: str, ids: Sequence[int] | None, convention: Convention | None = None) -> CheckReport:
    """What `specalign check` says about a head with these ids on this engine."""
    stated = {} if ids is None else {"eagle_aux_hidden_state_layer_ids": list(ids)}
    draft = parse_draft(HEAD | {"eagle_config": stated}, name="head")
    sizes = {"num_hidden_layers": N, "hidden_size": HEAD["hidden_size"], "vocab_size": HEAD["vocab_size"]}
    target = parse_target({"architectures": [ARCHITECTURES[family]], "model_type": family, **sizes}, name="target")
    return check(draft, target, engines=[ENGINE], convention=convention)


def errors(report: CheckReport) -> set[str]:
    return {finding.code for finding in report.of(ENGINE) if finding.severity.value == "error"}


def difference(got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> str:
    """Empty where every state is the wanted one; otherwise what is not."""
    if len(got) != len(wanted):
        return f"{len(got)} states arrive, {len(wanted)} wanted"
    apart = [float((one - other).abs().max()) for one, other in zip(got, wanted, strict=True)]
    return "" if max(apart) <= TOLERANCE else f"largest differences, state by state: {apart}"


def boundaries(target: Target, states: Sequence[int]) -> list[torch.Tensor]:
    return [target.boundaries[b] for b in states]


def ids_of(value: object) -> str | None:
    return f"{value.ids}-{value.convention.value if value.convention else 'default'}" if isinstance(value, Case) else None


def deviating(family: str) -> list[Case]:
    return [case for case in CASES if family in case.deviations]


KNOWN: Final = [(family, case) for family in ARCHITECTURES for case in deviating(family)]


@pytest.mark.parametrize("ids", [*dict.fromkeys(case.ids for case in CASES), *ODD_IDS], ids=str)
def test_the_states_that_arrive_are_the_ones_the_check_names(
    targets: dict[str, Target], family: str, ids: tuple[int, ...] | None
) -> None:
    (view,) = checked(family, ids).views
    if not view.states:
        # the engine leaves out the pair (hidden, states) where it captured nothing, and then unpacks one
        with pytest.raises(ValueError, match="too many values to unpack"):
            captured(targets[family].engine, ids)
        return
    got = captured(targets[family].engine, ids)
    assert not difference(got, boundaries(targets[family], view.states)), f"specalign check names {view.states}"


def test_the_profile_names_the_same_states_as_the_check(family: str) -> None:
    row = load_engines().profile(ENGINE, kind="eagle3", family=family, architecture=HEAD["architectures"][0]).capture
    assert row is not None
    for case in CASES:
        (view,) = checked(family, case.ids).views
        found = capture_ids(row, case.ids, N)
        assert (found.named, found.states, found.lost) == (view.named, view.states, view.lost), case


@pytest.mark.parametrize("case", CASES, ids=ids_of)
def test_a_head_gets_the_states_that_it_was_trained_on(
    request: pytest.FixtureRequest, targets: dict[str, Target], family: str, case: Case
) -> None:
    if family in case.deviations:
        # strict: an engine that mends it makes this test fail, and the profile is due for a row
        code = case.deviations[family]
        mark = pytest.mark.xfail(strict=True, raises=(AssertionError, ValueError), reason=f"{ENGINE} {family}: {code}")
        request.node.add_marker(mark)
    got = captured(targets[family].engine, case.ids)
    assert not difference(got, boundaries(targets[family], case.trained_on))


@pytest.mark.parametrize(("family", "case"), KNOWN, ids=ids_of)
def test_the_check_reports_every_known_deviation(family: str, case: Case) -> None:
    assert case.deviations[family] in errors(checked(family, case.ids, case.convention))


def test_the_check_reports_no_error_where_the_engine_is_right(family: str) -> None:
    for case in CASES:
        if family not in case.deviations and len(case.trained_on) == 3:
            assert not errors(checked(family, case.ids, case.convention)), case


def test_a_wrong_state_would_be_seen(targets: dict[str, Target], family: str) -> None:
    """Boundaries are far apart, and a neighbour, a swap or a missing state in place of the right ones is a difference."""
    target = targets[family]
    pairs = [(one, other) for one in range(N + 1) for other in range(one)]
    assert min((target.boundaries[a] - target.boundaries[b]).abs().max() for a, b in pairs) > 0.5
    target.engine.model.layers_to_capture = [1, 2, 4]
    got = handed_on(target.engine)
    assert not difference(got, boundaries(target, (1, 2, 4)))
    for wrong in ((1, 2, 5), (0, 1, 3), (2, 1, 4), (1, 2), (1, 2, 4, 5)):
        assert difference(got, boundaries(target, wrong))


def test_the_states_are_the_stream_before_the_final_norm(targets: dict[str, Target]) -> None:
    target = targets["gpt_oss"]
    (last,) = captured(target.engine, [N - 1])
    with torch.no_grad():
        normed = target.engine.model.norm(target.boundaries[N])
    assert not difference([last], [target.boundaries[N]])
    assert difference([last], [normed])

"""`specalign acceptance --gate` as tests: one for the length, one for each position, and three for what the figures prove.

    pytest -p specalign --pyargs pytest_specalign.suite.acceptance --specalign-target=TARGET --specalign-draft=DRAFT \\
        --specalign-prompts=FILE --specalign-acceptance-golden=GOLDEN [--specalign-convention=C] [--specalign-device=cuda]

The pair is measured once a process, as its golden was: depth, number of new tokens, dtype and prompts are the golden's. Another
head, other prompts or another target fail every test with what differs. Each test has its figure in its JUnit properties; the
whole verdict is a report section. With `--specalign-artifacts DIR` what was measured is written to `DIR/acceptance.json`.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_specalign.options import get_option
from pytest_specalign.verdicts import Comparison, Verdict, note_comparison
from specalign.acceptance.errors import AcceptanceError
from specalign.acceptance.gate import FLOOR, LENGTH, TEETH, GateVerdict, check_settings, format_verdict, judge, position
from specalign.acceptance.golden_file import AcceptanceGolden, read_golden
from specalign.acceptance.likeness import format_likeness
from specalign.acceptance.prompts import Prompt, read_prompts
from specalign.acceptance.report import Measured, format_json
from specalign.acceptance.report.text import loop_line
from specalign.integrations.pair import described, load_pair, measure_pair
from specalign.layer_ids import Convention
from specalign.layer_ids.rewrite import write_text_atomically
from specalign.leases.errors import LeaseError

GOLDEN: pytest.StashKey[AcceptanceGolden] = pytest.StashKey()

_NEEDED = ("target", "draft", "prompts", "acceptance_golden")
_LOOP_PROMPTS = 8


@dataclasses.dataclass(frozen=True)
class Held:
    """What was measured, and what the gate says of it."""

    measured: Measured
    verdict: GateVerdict


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One parameter for each position of a chain."""
    golden = _golden(metafunc.config)
    if "place" in metafunc.fixturenames:
        metafunc.parametrize("place", range(1, golden.depth + 1))


@pytest.fixture(scope="module")
def held(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Held:
    """The pair, measured and judged."""
    device = _device(request)
    try:
        return _measure(pytestconfig, device)
    except ValueError as error:  # what cannot be read, does not fit, or is of another pair
        reason = str(error)
    pytest.fail(f"specalign: {reason}", pytrace=False)


def _device(request: pytest.FixtureRequest) -> str:
    """Where the pair runs. A GPU that was asked for by name and cannot be had is no reason to skip."""
    if get_option(request.config, "device") != "cuda":
        return "cpu"
    try:
        return str(request.getfixturevalue("module_gpu_lease").torch_device)
    except (pytest.skip.Exception, LeaseError) as error:
        reason = str(error)
    pytest.fail(f"specalign: --specalign-device=cuda: {reason}", pytrace=False)


def test_length(held: Held, request: pytest.FixtureRequest) -> None:
    """The acceptance length did not drop."""
    found = held.verdict
    _judge(held, LENGTH, request.node, value=f"{found.run.length}", golden=f"{found.golden}", drop=f"{found.drop}")


def test_position(place: int, held: Held, request: pytest.FixtureRequest) -> None:
    """The share of rounds that accept so many drafts did not drop."""
    rates, drops = held.verdict.run.per_position, held.verdict.position_drops
    value, drop = (f"{some[place - 1]}" if place <= len(some) else "no round proposes so far" for some in (rates, drops))
    _judge(held, position(place), request.node, value=value, drop=drop)


def test_clears_the_dead_control(held: Held, request: pytest.FixtureRequest) -> None:
    """The length lies above that of a head that learnt nothing."""
    _judge(held, FLOOR, request.node, value=f"{held.verdict.run.length}", floor=f"{held.verdict.floor:.3f}")


def test_prompts_show_a_drop(held: Held, request: pytest.FixtureRequest) -> None:
    """These prompts would show a drop of half of what separates the head from a dead one: a pass proves something."""
    _judge(held, TEETH, request.node, value=str(held.verdict.run.prompts), visible=f"{held.verdict.visible:.3f}")


def test_the_loop_counts_what_the_replay_counts(held: Held, request: pytest.FixtureRequest) -> None:
    """The figures are those of a real draft–verify loop."""
    table = held.measured.table
    request.node.add_report_section("call", "specalign acceptance", "\n".join(map(loop_line, table.loops)))
    compared, differing = sum(loop.prompts for loop in table.loops), sum(len(loop.differing) for loop in table.loops)
    verdict: Verdict = "different" if table.problems else "equal"
    first = next(iter(table.problems), "")
    note_comparison(request.node, Comparison("loop", verdict, compared, differing, "prompts", "acceptance", first))
    if table.problems:
        pytest.fail("\n".join(table.problems), pytrace=False)


def _judge(held: Held, concern: str, node: pytest.Item, **properties: str) -> None:
    found = [problem for problem in held.verdict.found if problem.concern == concern]
    told = {"concern": concern, **properties, "looks_like": ", ".join(held.verdict.looks_like)}
    node.user_properties.extend((f"specalign_{name}", value) for name, value in told.items())
    node.add_report_section("call", "specalign acceptance", format_verdict(held.verdict))
    verdict: Verdict = "equal" if not found else "different" if found[0].is_drop else "not-proven"
    first = found[0].text if found else ""
    note_comparison(node, Comparison(concern, verdict, 1, int(verdict == "different"), "figures", "acceptance", first))
    if found:
        pytest.fail(f"{first}\n{format_likeness(held.verdict.looks_like)}", pytrace=False)


def _golden(config: pytest.Config) -> AcceptanceGolden:
    """The golden, read once.

    Raises:
        pytest.Collector.CollectError: an option is missing, or it is no golden.
    """
    missing = [f"--specalign-{name.replace('_', '-')}" for name in _NEEDED if get_option(config, name) is None]
    path = get_option(config, "acceptance_golden")
    if missing or path is None:
        raise pytest.Collector.CollectError(
            f"pytest_specalign.suite.acceptance needs {', '.join(missing)}; a golden is made with specalign acceptance --table"
            " --write-golden"
        )
    if GOLDEN not in config.stash:
        try:
            config.stash[GOLDEN] = read_golden(path)
        except AcceptanceError as error:
            raise pytest.Collector.CollectError(f"specalign: {error}") from None
    return config.stash[GOLDEN]


def _measure(config: pytest.Config, device: str) -> Held:
    """Raises `AcceptanceError` or `InputError`, which are ValueErrors."""
    golden = _golden(config)
    target, draft, file, convention = (str(get_option(config, name) or "") for name in (*_NEEDED[:3], "convention"))
    prompts = _those_of(golden, read_prompts(file))
    new_tokens, dtype = golden.new_tokens, _dtype(golden)
    pair = load_pair(target, draft, prompts, new_tokens=new_tokens, device=device, dtype=dtype)
    check_settings(golden, pair.identity(), golden.depth, new_tokens)
    from specalign.speculate.table import Settings  # it needs torch, which load_pair asks for in words

    begin = time.monotonic()
    settings = Settings(golden.depth, new_tokens, _LOOP_PROMPTS, only_right=True)
    table = measure_pair(pair, settings, convention=Convention(convention) if convention else None)
    seconds = time.monotonic() - begin
    measured = Measured(table, *pair.names, f"{described(file)}, {len(pair.tokens)} prompts", pair.environment, seconds)
    _write(get_option(config, "artifacts"), measured)
    return Held(measured, judge(golden, table.counts))


def _dtype(golden: AcceptanceGolden) -> str:
    """What the golden was measured in; anything that torch does not know is no pair of the command's."""
    found = golden.pair.get("dtype", "")
    if found not in ("float32", "bfloat16", "float16", "float64"):
        raise ValueError(f"the golden was measured in dtype {found!r}: was it written by specalign acceptance --write-golden?")
    return found


def _those_of(golden: AcceptanceGolden, prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    """The prompts that the golden has, maybe the first of a file; all of them where it has none, so that they are refused."""
    names = {item.name for item in golden.counts}
    return [prompt for prompt in prompts if names & {prompt.name, f"{prompt.name}/1"}] or prompts


def _write(folder: Path | None, measured: Measured) -> None:
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--specalign-artifacts={folder}: {error}") from None
        write_text_atomically(format_json(measured), folder / "acceptance.json")

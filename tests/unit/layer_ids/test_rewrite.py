"""A config rewritten for one engine: what changes, what each note says, and what is refused. The engines are made up here."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from specalign.layer_ids.conventions import Convention
from specalign.layer_ids.engine_profiles import CaptureProfile, DraftProfile, Engine
from specalign.layer_ids.engines import EngineTable
from specalign.layer_ids.files import InputError
from specalign.layer_ids.preflight import CheckReport, check
from specalign.layer_ids.rewrite import rewritten_config
from tests.unit.checks.scenarios import GPT_OSS, HEAD, IDS, H, draft_spec, target_spec

NESTED = f"eagle_config.{IDS}"
EAGLE3: dict[str, Any] = {"architectures": ["XEagle3"], "hidden_size": H}
DFLASH: dict[str, Any] = {"architectures": ["XDFlash"], "hidden_size": H}
FLAGS = ("norm_before_fc", "fc_norm", "norm_output", "norm_before_residual")


def nested(ids: object, **more: Any) -> dict[str, Any]:
    return EAGLE3 | {"eagle_config": {IDS: ids, **more}}


def capture(rule: str, *places: str, **settings: Any) -> CaptureProfile:
    return CaptureProfile("e", "*", ("eagle3", "dflash"), ("*",), rule, "s", "I", ids_from=places, **settings)


def reader(**settings: Any) -> DraftProfile:
    return DraftProfile("e", "*", ("eagle3", "dflash"), ("*",), "s", "I", **settings)


def table_of(captures: CaptureProfile | None, draft: DraftProfile | None) -> EngineTable:
    engine = Engine("e", "an engine of these tests", "server", ("1",))
    return EngineTable({"e": engine}, {}, (captures,) if captures else (), (draft,) if draft else ())


def rewrite(
    config: dict[str, Any],
    captures: CaptureProfile | None,
    draft: DraftProfile | None = None,
    *,
    says: str | None = None,
    flag_ids: tuple[int, ...] | None = None,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The changed keys of the config on a target of 36 layers, and the notes; `says` is a declared convention."""
    table = table_of(captures, draft)
    convention = Convention(says) if says else None
    spec = draft_spec(config)
    before = copy.deepcopy(dict(spec.config))
    report = check(spec, target_spec(GPT_OSS), engines=["e"], convention=convention, flag_ids=flag_ids, table=table)
    written, notes = rewritten_config(report, table=table)
    assert spec.config == before, "the report keeps what was read"
    return {key: value for key, value in written.items() if key not in before or before[key] != value}, notes


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        rewrite(*arguments, **options)
    return str(caught.value)


# Ids


def test_an_engine_that_is_right_gets_the_same_file() -> None:
    assert rewrite(HEAD, capture("boundary", IDS)) == ({}, ("nothing to change",))
    assert rewrite(EAGLE3 | {IDS: [24, 30, 36]}, capture("boundary", IDS)) == ({}, ("nothing to change",))


def test_boundaries_become_block_outputs_for_an_engine_that_reads_those_and_the_top_level_says_so() -> None:
    changed, notes = rewrite(nested([24, 30, 36]), capture("output", NESTED))
    assert changed == {"eagle_config": {IDS: [23, 29, 35]}, IDS: [24, 30, 36]}
    assert notes == (
        f"{NESTED} = [23, 29, 35], which this engine takes for [24, 30, 36]",
        f"{IDS} = [24, 30, 36], so that the two lists say their convention",
    )


def test_a_list_at_the_top_that_says_the_boundaries_already_is_left_alone() -> None:
    changed, notes = rewrite(nested([24, 30, 36]) | {IDS: [24, 30, 36]}, capture("output", NESTED))
    assert changed == {"eagle_config": {IDS: [23, 29, 35]}}
    assert notes == (f"{NESTED} = [23, 29, 35], which this engine takes for [24, 30, 36]",)


def test_block_outputs_get_boundaries_beside_them_for_an_engine_that_reads_the_top() -> None:
    changed, notes = rewrite(nested([1, 17, 32]), capture("boundary", IDS), says="output")
    assert changed == {IDS: [2, 18, 33]}
    assert notes == (f"{IDS} = [2, 18, 33], which this engine takes for [2, 18, 33]",)


def test_ids_at_a_third_place_get_both_lists_beside_them() -> None:
    changed, notes = rewrite(EAGLE3 | {IDS: [24, 30, 36]}, capture("output", "own_ids"))
    assert changed == {"own_ids": [23, 29, 35], "eagle_config": {IDS: [23, 29, 35]}}
    assert notes == (
        "own_ids = [23, 29, 35], which this engine takes for [24, 30, 36]",
        f"{NESTED} = [23, 29, 35], so that the two lists say their convention",
    )


def test_an_empty_nested_list_is_filled_so_that_the_two_lists_say_their_convention() -> None:
    changed, notes = rewrite(nested([]) | {IDS: [2, 18, 33]}, capture("boundary", IDS), says="boundary")
    assert changed == {"eagle_config": {IDS: [1, 17, 32]}}
    assert notes == (f"{NESTED} = [1, 17, 32], so that the two lists say their convention",)


def test_the_rule_is_the_one_of_the_place_that_is_written() -> None:
    changed, notes = rewrite(nested([24, 30, 36]), capture("boundary", NESTED, place_rules={NESTED: "output"}))
    assert changed["eagle_config"] == {IDS: [23, 29, 35]}
    assert notes[0] == f"{NESTED} = [23, 29, 35], which this engine takes for [24, 30, 36]"


def test_both_places_agree_afterwards() -> None:
    config = nested([24, 30, 36]) | {IDS: [20, 30, 36]}
    changed, notes = rewrite(config, capture("boundary", NESTED))
    assert (changed, notes) == ({}, ("nothing to change",)), "an engine that reads the right list needs nothing"
    changed, notes = rewrite(config, capture("boundary", NESTED), says="boundary")
    assert changed == {IDS: [24, 30, 36]}
    assert notes == (f"{IDS} = [24, 30, 36], so that both places agree",)


def test_a_file_whose_ids_leave_the_convention_open_needs_it_said_each_time() -> None:
    changed, notes = rewrite(nested([2, 18, 33]), capture("boundary", NESTED), says="boundary")
    assert changed == {}
    assert notes == ("say --convention boundary whenever you check this file",)
    changed, notes = rewrite(EAGLE3 | {IDS: [2, 18, 33]}, capture("boundary", NESTED), says="boundary")
    assert changed == {"eagle_config": {IDS: [2, 18, 33]}}
    assert notes == (
        f"{NESTED} = [2, 18, 33], which this engine takes for [2, 18, 33]",
        "say --convention boundary whenever you check this file",
    )


def test_ids_of_an_engine_whose_default_happens_to_be_right_are_written_all_the_same() -> None:
    # Without ids the engine takes [2, 18, 33] on 36 layers: right today, by accident.
    config = DFLASH | {"dflash_config": {"target_layer_ids": [1, 17, 32]}}
    changed, notes = rewrite(config, capture("output", "target_layer_ids"))
    assert changed == {"target_layer_ids": [1, 17, 32]}
    assert notes == ("target_layer_ids = [1, 17, 32], which this engine takes for [2, 18, 33]",)


def test_a_dflash_head_gets_one_list_only() -> None:
    config = DFLASH | {"dflash_config": {"target_layer_ids": [1, 17, 32]}, "target_layer_ids": [0, 9, 30]}
    changed, notes = rewrite(config, capture("output", "target_layer_ids"))
    assert changed == {"target_layer_ids": [1, 17, 32]}
    assert len(notes) == 1


def test_the_number_of_states_is_written_where_the_engine_reads_it_apart() -> None:
    counts = reader(ids_width=("num_aux_hidden_states",))
    four = EAGLE3 | {IDS: [24, 30, 36], "num_aux_hidden_states": 4}
    assert rewrite(four, capture("boundary", IDS), counts) == ({"num_aux_hidden_states": 3}, ("num_aux_hidden_states = 3",))
    three = four | {"num_aux_hidden_states": 3}
    assert rewrite(three, capture("boundary", IDS), counts) == ({}, ("nothing to change",))
    blind = reader(ids_width=(IDS,))
    assert rewrite(four, capture("boundary", IDS), blind) == ({}, ("nothing to change",))
    assert rewrite(four, capture("boundary", IDS)) == ({}, ("nothing to change",))
    for config, noted in ((four, ("num_aux_hidden_states = 3",)), (three, ())):
        moved = rewrite(config | {IDS: None} | nested([24, 30, 36]), capture("output", NESTED), counts)
        assert moved[1] == (
            f"{NESTED} = [23, 29, 35], which this engine takes for [24, 30, 36]",
            *noted,
            f"{IDS} = [24, 30, 36], so that the two lists say their convention",
        )


def test_ids_given_by_a_flag_need_no_change_of_the_file() -> None:
    by_flag = capture("output", "cli:--ids")
    assert rewrite(EAGLE3 | {IDS: [24, 30, 36]}, by_flag, flag_ids=(23, 29, 35)) == ({}, ("nothing to change",))
    other = capture("output", "cli:--ids", NESTED)
    assert rewrite(EAGLE3 | {IDS: [24, 30, 36]}, other, flag_ids=(23, 29, 35)) == ({}, ("nothing to change",))


def test_a_declared_convention_is_confirmed_for_an_engine_that_reads_no_file() -> None:
    by_flag = capture("output", "cli:--ids")
    changed, notes = rewrite(EAGLE3 | {IDS: [2, 18, 33]}, by_flag, says="boundary", flag_ids=(1, 17, 32))
    assert (changed, notes) == ({}, ("say --convention boundary whenever you check this file",))


def test_a_head_without_ids_has_none_to_write() -> None:
    config = EAGLE3 | {"eagle_config": {"use_aux_hidden_state": False}}
    reads = reader(reads={"use_aux_hidden_state": ("eagle_config.use_aux_hidden_state",)})
    assert rewrite(config, capture("output", IDS), reads) == ({}, ("nothing to change",))


# What no file can say


def report_of(*engines: str, ids: list[int] | None = None) -> CheckReport:
    config = HEAD if ids is None else nested(ids)
    return check(draft_spec(config), target_spec(GPT_OSS), engines=engines)


@pytest.mark.parametrize("engines", [("sglang==0.5.23", "sglang==0.5.17"), ()])
def test_one_engine_has_to_be_named(engines: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match=r"^--write-config writes for one engine: name it with --engine NAME==VERSION$"):
        rewritten_config(report_of(*engines))


def test_a_guess_is_not_written() -> None:
    says = r"^--write-config needs to know what the ids mean: say --convention boundary or --convention output$"
    with pytest.raises(InputError, match=says):
        rewritten_config(report_of("sglang==0.5.23", ids=[1, 17, 32]))


def test_the_engines_of_the_package_are_taken_without_a_table() -> None:
    config, notes = rewritten_config(report_of("sglang==0.5.23"))
    assert (config, notes) == (HEAD, ("nothing to change",))


def test_a_file_that_engine_and_reader_take_differently_is_refused_with_both() -> None:
    says = (
        "no config tells both e==1 and a reader {meant}: the engine would capture {engine}, a reader take {reader};"
        " give ids by the engine's flag"
    )
    # The two lists of the double statement stand where this engine reads the one that is not for it.
    found = refusal(nested([24, 30, 36]) | {IDS: [24, 30, 36]}, capture("output", IDS))
    assert found == says.format(meant="[24, 30, 36]", engine="[25, 31]", reader="[24, 30, 36]")
    # Boundaries in eagle_config alone are read as outputs by whoever says --convention output again.
    found = refusal(nested([1, 17, 32]), capture("boundary", NESTED), says="output")
    assert found == says.format(meant="[2, 18, 33]", engine="[2, 18, 33]", reader="[3, 19, 34]")
    # No row says that this engine captures anything.
    found = refusal(EAGLE3 | {IDS: [24, 30, 36]}, None, reader())
    assert found == says.format(meant="[24, 30, 36]", engine="[]", reader="[24, 30, 36]")


def test_states_that_the_engine_never_captures_are_refused_by_name() -> None:
    found = refusal(EAGLE3 | {IDS: [24, 30, 36]}, capture("output", IDS, reach="n-1"))
    assert found.startswith("e==1 cannot be given [24, 30, 36]: no list of layer ids gives the states [24, 30, 36]")


@pytest.mark.parametrize(("remedy", "says"), [("use --ids", "use --ids"), ("", "see its own flags")])
def test_an_engine_that_reads_no_config_is_refused_with_its_remedy(remedy: str, says: str) -> None:
    found = refusal(EAGLE3 | {IDS: [24, 30, 36]}, capture("output", "cli:--ids", remedy=remedy))
    assert found == f"e==1 reads no ids from a draft config: {says}"


# Norm flags and the width of the target


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("on", [True, False])
def test_a_norm_flag_moves_to_where_the_engine_reads_it(name: str, on: bool) -> None:
    reads = reader(reads={name: (f"eagle_config.{name}", "elsewhere")}, defaults={name: not on})
    changed, notes = rewrite(HEAD | {name: on}, capture("boundary", IDS), reads)
    assert changed == {"eagle_config": {IDS: [24, 30, 36], name: on}}
    assert notes == (f"eagle_config.{name} = {'true' if on else 'false'}",)


def test_every_norm_flag_is_looked_at() -> None:
    reads = reader(reads={name: (f"n.{name}",) for name in FLAGS})
    changed, notes = rewrite(HEAD | dict.fromkeys(FLAGS, True), capture("boundary", IDS), reads)
    assert changed == {"n": dict.fromkeys(FLAGS, True)}
    assert notes == tuple(f"n.{name} = true" for name in FLAGS)


@pytest.mark.parametrize(
    ("config", "reads"),
    [
        ({"fc_norm": True}, None),
        ({"fc_norm": True}, reader()),
        ({"fc_norm": True}, reader(reads={"fc_norm": ()})),
        ({}, reader(reads={"fc_norm": ("n.fc_norm",)}, defaults={"fc_norm": True})),
        ({"fc_norm": True}, reader(reads={"fc_norm": ("n.fc_norm", "fc_norm")})),
        ({"fc_norm": False}, reader(reads={"fc_norm": ("n.fc_norm",)})),
    ],
    ids=["no row", "not looked at", "not read", "not stated", "read", "off by default"],
)
def test_a_norm_flag_is_left_alone(config: dict[str, Any], reads: DraftProfile | None) -> None:
    assert rewrite(HEAD | config, capture("boundary", IDS), reads) == ({}, ("nothing to change",))


def test_a_flag_that_cannot_be_moved_does_not_hold_up_the_next() -> None:
    reads = reader(reads={"norm_output": ("n.norm_output",)})
    changed, _ = rewrite(HEAD | dict.fromkeys(FLAGS, True), capture("boundary", IDS), reads)
    assert changed == {"n": {"norm_output": True}}


def test_a_width_of_null_is_filled_where_it_breaks_the_engine() -> None:
    config = EAGLE3 | {IDS: [24, 30, 36], "target_hidden_size": ..., "eagle_config": {"target_hidden_size": None}}
    changed, notes = rewrite(config, capture("boundary", IDS), reader(target_hidden_size_null="error"))
    assert changed == {"target_hidden_size": 2880, "eagle_config": {"target_hidden_size": 2880}}
    assert notes == ("target_hidden_size = 2880", "eagle_config.target_hidden_size = 2880")
    for harmless in (None, reader(), reader(target_hidden_size_null="hidden_size")):
        assert rewrite(config, capture("boundary", IDS), harmless) == ({}, ("nothing to change",))
    stated = config | {"target_hidden_size": 7, "eagle_config": {}}
    assert rewrite(stated, capture("boundary", IDS), reader(target_hidden_size_null="error")) == ({}, ("nothing to change",))


def test_a_place_within_something_that_is_no_object_replaces_it() -> None:
    changed, _ = rewrite(EAGLE3 | {IDS: [24, 30, 36], "eagle_config": "odd"}, capture("output", NESTED))
    assert changed == {"eagle_config": {IDS: [23, 29, 35]}}
    deep, _ = rewrite(HEAD | {"a": {"keep": 1}, "fc_norm": True}, capture("boundary", IDS), reader(reads={"fc_norm": ("a.b.c",)}))
    assert deep == {"a": {"keep": 1, "b": {"c": True}}}

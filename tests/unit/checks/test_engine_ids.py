"""Ids on engines of which each fact is made up: what an engine reads, names, captures and loses decides what is found."""

from __future__ import annotations

from typing import Any

import pytest

from specalign.layer_ids.conventions import Convention
from specalign.layer_ids.findings import Severity
from tests.unit.checks.made_up import engine, found, report, the
from tests.unit.checks.scenarios import DFLASH, GPT_OSS, HEAD, IDS, NESTED, NO_IDS, eagle, ids

BARE = HEAD | NO_IDS
BOUNDARY, OUTPUT, HF = ({"convention": c} for c in (Convention.BOUNDARY, Convention.OUTPUT, Convention.HF))
DEFAULT = "the engine's default"


def lists(nested: object, top: object) -> dict[str, Any]:
    """A head with one list in eagle_config and another at the top level."""
    return HEAD | {"eagle_config": {IDS: nested}, IDS: top}


def layers(n: int) -> dict[str, Any]:
    return GPT_OSS | {"num_hidden_layers": n}


# -- no ids, or ids at another place ---------------------------------------------------------------------------------------


def test_the_default_of_six_layers_is_too_shallow_and_of_seven_is_not() -> None:
    shallow = the("default-too-shallow", engine(), BARE, layers(6))
    assert (shallow.where, shallow.how_much) == ("num_hidden_layers", "6 layers, at least 7 needed")
    assert "[2, 3, 3]" in shallow.what
    assert not found("default-too-shallow", engine(), BARE, layers(7))
    assert "[2, 3, 4]" in the("ids-guessed", engine(), BARE, layers(7)).what


def test_a_default_that_is_not_the_rules_own_is_not_measured_by_it() -> None:
    table = engine({"default": "dflash-even", "ids_from": ("dflash_config.target_layer_ids",)})
    head = DFLASH | {"dflash_config": {"x": 1}, "num_hidden_layers": 1}
    assert not found("default-too-shallow", table, head, layers(4))
    assert "[2]" in the("ids-guessed", table, head, layers(4)).what


def test_a_guess_names_every_place_that_was_looked_at_or_the_default() -> None:
    assert the("ids-guessed", engine({"ids_from": ("a.b", IDS)}), BARE).where == f"a.b, {IDS}"
    assert the("ids-guessed", engine({"ids_from": ()}), BARE).where == DEFAULT


def test_a_refused_default_is_refused_and_not_guessed() -> None:
    table = engine({"default": "refused"})
    refused = the("ids-refused", table, BARE)
    assert (refused.where, refused.how_much) == (DEFAULT, "ids None become []")
    assert not found("ids-guessed", table, BARE)
    assert not found("ids-not-read", table, lists([24, 30, 36], None))


def test_ids_at_an_unread_place_are_an_error_unless_the_default_is_the_same() -> None:
    other = the("ids-not-read", engine(), lists([24, 30, 36], None))
    same = the("ids-not-read", engine(), lists([2, 18, 33], None), **BOUNDARY)
    assert (other.severity, same.severity) == (Severity.ERROR, Severity.WARNING)
    assert other.what == f"{NESTED} = [24, 30, 36] is not read for capture; the engine takes its default [2, 18, 33]"
    assert other.where == NESTED
    assert other.how_much == f"read: {IDS}"
    assert other.next == f"for [24, 30, 36] on this engine set {IDS} to [24, 30, 36]"


def test_unread_ids_that_are_invalid_are_not_spelled_out() -> None:
    assert the("ids-not-read", engine(), lists([24, "x"], None)).what.startswith(f"{NESTED} = the ids is not read")


def test_unread_ids_without_a_certain_meaning_get_no_list_to_write() -> None:
    hinted = the("ids-not-read", engine(remedies={"eagle3": "R"}), lists([1, 17, 32], None))
    unknown = the("ids-not-read", engine(), lists([3, 19, 30], None))
    assert (hinted.next, unknown.next) == ("R", f"write the ids to {IDS}")


def test_the_places_and_the_flag_that_would_be_read_are_named() -> None:
    unread = the("ids-not-read", engine({"ids_from": ("a.b", "cli:--layers")}), lists([3, 19, 30], None))
    assert unread.how_much == "read: a.b, --layers (a flag)"
    assert unread.next == "pass --layers, or write the ids to a.b, --layers (a flag)"


def test_an_engine_that_reads_no_place_says_so() -> None:
    unread = the("ids-not-read", engine({"ids_from": ()}), lists([24, 30, 36], None))
    assert unread.how_much == "read: no place in the config"
    assert unread.next == "write the ids to a place that the engine reads"


def test_two_lists_that_differ_are_an_error_for_an_engine_that_reads_the_second() -> None:
    second = the("ids-not-read", engine(), lists([24, 30, 36], [25, 29, 35]))
    assert second.what == f"{NESTED} = [24, 30, 36] is not read for capture; the engine takes {IDS}"
    assert second.severity is Severity.ERROR


@pytest.mark.parametrize(
    ("capture", "head", "options"),
    [
        ({}, lists([24, 30, 36], [24, 30, 36]), {}),
        ({}, lists([23, 29, 35], [24, 30, 36]), {}),
        ({"ids_from": (NESTED,)}, lists([24, 30, 36], [25, 29, 35]), {}),
        ({"ids_from": ("cli:--layers",)}, lists([24, 30, 36], None), {"flag_ids": [23, 29, 35]}),
        ({}, lists([24, 30, 36], [24, "x"]), {}),
        ({}, lists([24, "x"], [24, 30, 36]), {}),
    ],
    ids=["the same", "one up", "the first is read", "by flag", "unreadable", "the first is invalid"],
)
def test_these_lists_are_not_a_list_that_is_not_read(capture: Any, head: Any, options: Any) -> None:
    assert not found("ids-not-read", engine(capture), head, **options)


# -- refused, unreachable, collapsed, corrupt ------------------------------------------------------------------------------


def test_a_refusal_names_the_ids_and_what_became_of_them() -> None:
    table = engine({"rule": "output", "reach": "n-1", "unreachable": "IndexError"})
    refused = the("ids-refused", table, HEAD)
    assert (refused.where, refused.how_much) == (IDS, "ids [24, 30, 36] become [25, 31, 37]")
    assert refused.next == "name ids that the engine accepts"
    assert [f.code for f in report(table, HEAD).of("made-up==1")] == ["ids-refused"]


def test_a_refusal_gives_the_ids_that_work_unless_they_are_those_that_failed() -> None:
    once = engine({"rule": "output", "unreachable": "IndexError"})
    assert the("ids-refused", once, HEAD).next == f"for [24, 30, 36] on this engine set {IDS} to [23, 29, 35]"
    four = the("ids-refused", engine({"exactly": 4}), HEAD)
    assert "exactly 4" in four.what
    assert four.next == "name ids that the engine accepts"


def test_ids_that_are_no_list_are_refused_without_figures() -> None:
    refused = the("ids-refused", engine(), ids("24,30"))
    assert (refused.where, refused.how_much) == (IDS, "")
    assert "24,30" in refused.what


def test_a_refusal_without_a_known_meaning_gives_no_list() -> None:
    table = engine({"exactly": 4}, remedies={"eagle3": "R"})
    assert the("ids-refused", table, HEAD | ids([3, 19, 30])).next == "R"


def test_advice_names_the_first_place_of_the_config_else_the_flag() -> None:
    beyond = {"rule": "output", "unreachable": "IndexError"}
    both = the("ids-refused", engine(beyond | {"ids_from": ("cli:--layers", IDS)}), HEAD)
    assert both.next == f"for [24, 30, 36] on this engine set {IDS} to [23, 29, 35]"
    flag = the("ids-refused", engine(beyond | {"ids_from": ("cli:--layers",)}), HEAD, flag_ids=[24, 30, 36])
    assert flag.next == "for [24, 30, 36] on this engine set --layers to [23, 29, 35]"
    assert flag.where == "cli:--layers"


def test_advice_follows_the_rule_of_the_place_that_it_names() -> None:
    table = engine({"place_rules": {IDS: "output"}, "unreachable": "IndexError"})
    assert the("ids-refused", table, HEAD).next.endswith(f"set {IDS} to [23, 29, 35]")


def test_no_place_means_no_list_to_write() -> None:
    lost = the(
        "state-unreachable", engine({"ids_from": (), "reach": "none"}, remedies={"eagle3": "R"}), lists([24, 30, 36], None)
    )
    assert lost.next == "R"
    assert lost.how_much == "ids None become [2, 18, 33], captured []"
    assert lost.where == DEFAULT


def test_a_boundary_beyond_the_last_block_is_told_from_one_that_is_never_captured() -> None:
    beyond = the("state-unreachable", engine({"rule": "output"}), HEAD)
    never = the("state-unreachable", engine({"reach": "n-1"}), HEAD)
    assert beyond.what == "1 of 3 states silently do not arrive: boundary 37 does not exist on 36 layers"
    assert never.what == "1 of 3 states silently do not arrive: boundary 36 is never captured"
    assert never.how_much == "ids [24, 30, 36] become [24, 30, 36], captured [24, 30]"
    assert (beyond.where, never.where) == (IDS, IDS)
    assert never.next == "use a version of the engine that captures this boundary"


def test_the_boundary_that_does_not_exist_is_named_before_one_that_is_dropped() -> None:
    table = engine({"rule": "output", "boundary_0": "dropped", "negative": "-1 -> boundary 0", "reach": "n-1"})
    assert "2 of 3 states silently do not arrive: boundary 37" in the("state-unreachable", table, HEAD | ids([24, 35, 36])).what


def test_post_norm_beside_a_lost_boundary_is_no_boundary() -> None:
    table = engine({"rule": "hf_output", "boundary_0": "dropped"})
    lost = the("state-unreachable", table, HEAD | ids([-1, 30, 35]))
    assert lost.what == "1 of 3 states silently do not arrive: boundary 0 is never captured"
    assert lost.how_much == "ids [-1, 30, 35] become [0, 31, POST_NORM], captured [31, POST_NORM]"


def test_a_default_that_names_a_state_twice_collapses_at_the_default() -> None:
    collapsed = the("ids-collapsed", engine(), BARE, layers(6))
    assert (collapsed.where, collapsed.how_much) == (DEFAULT, "named [2, 3, 3], captured [2, 3]")


@pytest.mark.parametrize(
    ("capture", "listed", "collapses"),
    [
        ({}, [24, 24, 30], True),
        ({"duplicates": "keep"}, [24, 24, 30], False),
        ({"reach": "n-1"}, [24, 36, 36], False),
        ({"reach": "n-1"}, [24, 24, 36], True),
        ({}, [24, 30, 36], False),
    ],
)
def test_only_states_that_arrive_and_are_merged_collapse(capture: Any, listed: list[int], collapses: bool) -> None:
    assert bool(found("ids-collapsed", engine(capture), HEAD | ids(listed))) is collapses


def test_an_aliased_embedding_is_corrupt_only_where_boundary_0_is_captured() -> None:
    table = engine({"boundary_0": "aliased", "source": "model.py:1"})
    corrupt = the("state-corrupt", table, HEAD | ids([0, 18, 36]))
    assert (corrupt.where, corrupt.how_much, corrupt.severity) == ("model.py:1", "states [0, 18, 36]", Severity.ERROR)
    assert corrupt.what.endswith(": boundary 0 without a copy, which later blocks overwrite")
    assert corrupt.next == "do not name boundary 0 here"
    assert not found("state-corrupt", table, HEAD)
    assert not found("state-corrupt", engine(), HEAD | ids([0, 18, 36]))


def test_a_capture_of_something_else_is_corrupt_whatever_the_ids() -> None:
    corrupt = the("state-corrupt", engine({"captured": "the normed stream", "source": "model.py:1"}), HEAD)
    assert corrupt.what.endswith(": the normed stream")
    assert corrupt.next == "use a version without the fault; no list of ids avoids it"


# -- other states, or another order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capture", "head", "options", "says"),
    [
        ({"rule": "output"}, HEAD, {}, "the proven convention BOUNDARY: every one is 1 boundary too late"),
        ({}, HEAD | ids([3, 19, 30]), OUTPUT, "the declared convention OUTPUT: every one is 1 boundary too early"),
        ({}, lists([24, 30, 33], [26, 32, 35]), BOUNDARY, "the declared convention BOUNDARY: every one is 2 boundaries too late"),
        ({}, lists([26, 32, 35], [24, 30, 33]), BOUNDARY, "every one is 2 boundaries too early"),
        ({}, HEAD | ids([1, 17, 32]), {}, "the suggested convention OUTPUT: every one is 1 boundary too early"),
        ({}, HEAD | ids([24, 30, 36]), HF, "the declared convention HF: 1 of 3 states differ"),
        ({}, lists([24, 30, 33], [25, 31, 34, 35]), BOUNDARY, "3 of 3 states differ"),
        ({}, lists([24, 30, 33, 35], [25, 31, 34]), BOUNDARY, "4 of 4 states differ"),
        ({}, lists([24, 30, 33], [24, 31, 32]), BOUNDARY, "2 of 3 states differ"),
    ],
)
def test_how_far_off_the_captured_states_are(capture: Any, head: Any, options: Any, says: str) -> None:
    shifted = the("ids-shifted", engine(capture), head, **options)
    assert shifted.what.endswith(says)
    assert shifted.where == IDS


def test_a_convention_that_the_format_fixes_is_called_so() -> None:
    place = "dflash_config.target_layer_ids"
    shifted = the("ids-shifted", engine({"ids_from": (place,)}), DFLASH)
    assert "the fixed by the format convention OUTPUT: every one is 1 boundary too early" in shifted.what
    assert shifted.how_much == "captured [1, 17, 32], meant [2, 18, 33]"
    assert shifted.next == f"for [2, 18, 33] on this engine set {place} to [2, 18, 33]"
    assert shifted.severity is Severity.ERROR


def test_a_hint_makes_a_shift_a_warning_and_a_proof_an_error() -> None:
    assert the("ids-shifted", engine(), HEAD | ids([1, 17, 32])).severity is Severity.WARNING
    assert the("ids-shifted", engine({"rule": "output"}), HEAD).severity is Severity.ERROR


def test_a_shift_that_no_list_mends_says_so() -> None:
    shifted = the("ids-shifted", engine({"rule": "output", "reach": "n-1"}), HEAD)
    assert shifted.next == "no list of ids gives the meant states on this engine"
    assert shifted.how_much == "captured [25, 31, 37], meant [24, 30, 36]"


def test_a_default_is_guessed_or_not_read_and_never_shifted() -> None:
    assert not found("ids-shifted", engine(), lists([24, 30, 36], None))


def test_another_order_is_found_only_where_all_states_arrive() -> None:
    reordered = the("ids-reordered", engine(), HEAD | ids([36, 24, 30]))
    assert (reordered.where, reordered.how_much) == (NESTED, "[24, 30, 36] in place of [36, 24, 30]")
    assert not found("ids-reordered", engine({"order": "config"}), HEAD | ids([36, 24, 30]))
    assert not found("ids-reordered", engine({"reach": "n-1"}), HEAD | ids([36, 24, 30]))
    assert not found("ids-reordered", engine(), HEAD)


# -- use_aux_hidden_state --------------------------------------------------------------------------------------------------


def test_boundaries_for_a_head_that_takes_post_norm_are_an_error() -> None:
    ignored = the("aux-state-off", engine(), HEAD | eagle(use_aux_hidden_state=False))
    assert (ignored.where, ignored.how_much) == ("use_aux_hidden_state", "captured [24, 30, 36], meant [POST_NORM]")
    assert ignored.severity is Severity.ERROR
    assert ignored.next == "serve this head with an engine that honours use_aux_hidden_state"
    told = engine(draft={"remedies": {"aux-state-off": "R"}})
    assert the("aux-state-off", told, HEAD | eagle(use_aux_hidden_state=False)).next == "R"


def test_an_engine_that_honours_the_flag_or_hands_on_post_norm_is_right() -> None:
    off = HEAD | eagle(use_aux_hidden_state=False)
    reads = engine(draft={"reads": {"use_aux_hidden_state": ("eagle_config.use_aux_hidden_state",)}})
    assert report(reads, off).of("made-up==1") == ()
    assert not found("aux-state-off", engine({"rule": "hf"}), off | ids([36]) | {"use_aux_hidden_state": False})
    assert not found("ids-not-read", engine({"ids_from": ("a.b",)}), off)


def test_ids_on_an_unsupported_target_are_not_judged() -> None:
    codes = [f.code for f in report(engine({"supported": False}), BARE).of("made-up==1")]
    assert codes == ["target-unsupported"]
    assert [f.code for f in report(engine(None), BARE).of("made-up==1")] == ["target-unprofiled"]

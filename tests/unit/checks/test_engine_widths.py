"""Widths on engines of which each fact is made up. The head has three ids, and one state is 2880 wide: fc takes 8640."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.checks.made_up import engine, found, report, the
from tests.unit.checks.scenarios import GPT_OSS, HEAD, IDS, NESTED, NO_IDS, TENSORS, H, eagle, ids

READS_IDS = {"ids_width": (IDS,)}
FORWARD = "the draft's fc at the first forward"


def fc(rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return TENSORS | {"fc.weight": (rows, columns)}


def only(code: str, draft: Mapping[str, Any], *pair: Any, capture: Mapping[str, Any] | None = None, **options: Any) -> list[str]:
    """Where the findings of that code are, and by how much."""
    return [f"{f.where}: {f.how_much}" for f in found(code, engine(capture or {}, draft), *pair, **options)]


# -- the files themselves --------------------------------------------------------------------------------------------------


def of_files(config: Mapping[str, Any], target: Mapping[str, Any] = GPT_OSS, **options: Any) -> list[tuple[str, str, str]]:
    found = report(engine(), config, target, **options).of(None)
    return [(f.code, f.where, f.how_much) for f in found if f.code in ("target-mismatch", "width-mismatch")]


@pytest.mark.parametrize(
    ("head", "where", "how_much"),
    [
        ({"target_hidden_size": 4096}, "target_hidden_size", "4096 against 2880"),
        (eagle(target_hidden_size=4096), "target_hidden_size", "4096 against 2880"),
        (
            {"hidden_size": 4096},
            "hidden_size (no target_hidden_size is stated, so states are as wide as the head)",
            "4096 against 2880",
        ),
        ({"num_target_layers": 32}, "target_num_hidden_layers", "32 against 36"),
        ({"dflash_config": {"num_target_layers": 32}}, "target_num_hidden_layers", "32 against 36"),
        ({"target_layer_count": 32}, "target_num_hidden_layers", "32 against 36"),
        ({"target_num_hidden_layers": 32}, "target_num_hidden_layers", "32 against 36"),
        ({"vocab_size": 201089}, "vocab_size", "201089 against 201088"),
    ],
)
def test_a_head_for_a_target_of_another_size(head: dict[str, Any], where: str, how_much: str) -> None:
    assert of_files(HEAD | head) == [("target-mismatch", where, how_much)]
    key = {"target_num_hidden_layers": "num_hidden_layers", "vocab_size": "vocab_size"}.get(where, "hidden_size")
    stated, actual = how_much.split(" against ")
    (mismatch,) = [f for f in report(engine(), HEAD | head).of(None) if f.code == "target-mismatch"]
    assert mismatch.what == f"the head was made for a target whose {key} is {stated}, this target has {actual}"


@pytest.mark.parametrize(
    "head",
    [
        {"hidden_size": 4096, "target_hidden_size": H},
        {"num_target_layers": 36},
        {"vocab_size": 201087},
        {"vocab_size": 201088},
        {"vocab_size": None},
        {"target_hidden_size": "4096", "hidden_size": H},
    ],
)
def test_a_head_that_fits_or_does_not_say(head: dict[str, Any]) -> None:
    assert of_files(HEAD | head) == []


def test_a_target_that_does_not_say_its_vocabulary_is_not_compared() -> None:
    assert of_files(HEAD, {k: v for k, v in GPT_OSS.items() if k != "vocab_size"}) == []


def test_only_an_eagle3_head_is_taken_to_be_as_wide_as_its_states() -> None:
    head = HEAD | {"architectures": ["DFlashDraftModel"], "hidden_size": 4096}
    assert of_files(head, kind="dflash") == []


def test_fc_takes_one_chunk_for_each_id_of_the_same_config() -> None:
    assert of_files(HEAD, tensors=fc(H, 2 * H)) == [
        ("width-mismatch", f"fc.weight [2880, 5760] and {NESTED}", "3 * 2880 = 8640 against 5760")
    ]
    assert of_files(HEAD, tensors=fc(H, 3 * H)) == []
    assert of_files(HEAD | NO_IDS | {"norm_before_fc": False}, tensors=fc(H, 2 * H)) == []
    assert of_files(HEAD, tensors=TENSORS | {"fc.weight": (H,)}) == []
    assert of_files(HEAD, tensors=fc(H, 2 * H), kind="eagle") == []


@pytest.mark.parametrize("kind", ["eagle3", "dflash", "dspark"])
def test_every_kind_with_ids_is_measured(kind: Any) -> None:
    head = HEAD | ids(None) | {"dflash_config": {"target_layer_ids": [1, 17]}, IDS: [2, 18]}
    assert [code for code, _, _ in of_files(head, tensors=fc(H, 3 * H), kind=kind)] == ["width-mismatch"]


# -- what the engine builds ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "null", "where"),
    [
        ({"target_hidden_size": ...}, "error", ["target_hidden_size: "]),
        (eagle(target_hidden_size=None), "error", ["eagle_config.target_hidden_size: "]),
        ({"target_hidden_size": ...}, "hidden_size", []),
        ({}, "error", []),
        ({"target_hidden_size": H}, "error", []),
    ],
)
def test_a_null_width_breaks_only_engines_that_multiply_it(head: dict[str, Any], null: str, where: list[str]) -> None:
    assert only("target-hidden-size-null", {"target_hidden_size_null": null}, HEAD | head) == where


def test_room_for_another_number_of_states_than_captured() -> None:
    draft = READS_IDS | {"buffer_width": ("num_aux",)}
    assert only("width-source-differs", draft, HEAD | {"num_aux": 4}) == ["the buffer of the captured states: 3 against 4"]
    assert only("width-source-differs", draft, HEAD | {"num_aux": 3}) == []
    assert only("width-source-differs", draft) == []
    told = engine(draft=draft | {"remedies": {"width-source-differs": "R"}})
    assert the("width-source-differs", told, HEAD | {"num_aux": 4}).next == "R"
    assert the("width-source-differs", engine(draft=draft), HEAD | {"num_aux": 4}).next == "state the ids at one place only"


def test_fc_built_from_another_place_than_the_states() -> None:
    differs = the("width-source-differs", engine(draft={"ids_width": ("num_aux",)}), HEAD | {"num_aux": 4})
    assert (differs.where, differs.how_much) == (f"{IDS} and num_aux", "3 against 4")
    assert differs.what == f"capture takes 3 states from {IDS}, fc is built for 4 from num_aux"
    assert differs.next.startswith("state the ids at one place that the engine reads for both")
    told = engine(draft={"width_default": 4, "remedies": {"width-source-differs": "R"}})
    default = the("width-source-differs", told, HEAD | NO_IDS)
    assert (default.where, default.next) == ("default and default", "R")
    assert default.what == "capture takes 3 states from the default, fc is built for 4 from the default"


@pytest.mark.parametrize(
    ("capture", "draft", "head"),
    [
        ({}, {}, HEAD),
        ({}, {"width_default": 3}, HEAD),
        ({"exactly": 4}, {"width_default": 4}, HEAD),
        ({"rule": "hf"}, {"width_default": 4, "buffer_width": ("num_aux",)}, HEAD | ids([36]) | {"num_aux": 4}),
        ({"supported": False}, {"width_default": 4, "buffer_width": ("num_aux",)}, HEAD | {"num_aux": 4}),
    ],
    ids=["nobody looked", "the same", "refused", "post norm", "unsupported"],
)
def test_widths_from_other_places_are_not_compared_when_nothing_is_captured(capture: Any, draft: Any, head: Any) -> None:
    assert only("width-source-differs", draft, head, capture=capture) == []


def test_fc_of_the_file_against_fc_that_the_engine_builds() -> None:
    draft = {"width_default": 4, "remedies": {}}
    load = found("width-mismatch", engine(draft=draft), tensors=TENSORS)
    assert [(f.where, f.how_much) for f in load] == [("fc.weight [2880, 8640]", "4 * 2880 = 11520 against 8640")]
    assert load[0].next == "make the number of ids that the engine reads equal to the number of chunks of fc.weight"
    told = engine(draft=draft | {"remedies": {"width-mismatch": "R"}})
    assert the("width-mismatch", told, tensors=TENSORS).next == "R"


@pytest.mark.parametrize(
    ("draft", "tensors"),
    [
        ({"width_default": 3}, TENSORS),
        ({}, TENSORS),
        ({"width_default": 3}, TENSORS | {"fc.weight": (3 * H,)}),
        ({"width_default": 3}, None),
    ],
    ids=["the same", "nobody looked", "no matrix", "no weights"],
)
def test_an_fc_that_loads_and_runs(draft: Any, tensors: Any) -> None:
    assert only("width-mismatch", draft, tensors=tensors) == []


def test_a_head_on_post_norm_has_no_fc_to_fill() -> None:
    head = HEAD | ids([36])
    assert only("width-mismatch", {"width_default": 4}, head, capture={"rule": "hf"}, tensors=TENSORS) == []


# -- what arrives at the first forward -------------------------------------------------------------------------------------


def test_states_that_do_not_fill_fc_predict_the_error_of_torch() -> None:
    table = engine({"reach": "n-1"}, remedies={"eagle3": "R"})
    dies = the("width-mismatch", table, tensors=fc(1440, 3 * H))
    assert (dies.where, dies.how_much, dies.next) == (FORWARD, "5760 against 8640", "R")
    assert "(tokens x 5760 and 8640 x 1440)" in dies.what
    plain = the("width-mismatch", engine({"reach": "n-1"}), tensors=TENSORS)
    assert plain.next == "make the engine capture every state that the head needs"


def test_without_weights_the_width_that_the_engine_builds_counts() -> None:
    dies = the("width-mismatch", engine({"reach": "n-1"}, READS_IDS), HEAD | {"hidden_size": 1440, "target_hidden_size": H})
    assert dies.how_much == "5760 against 8640"
    assert "(tokens x 5760 and 8640 x 1440)" in dies.what
    unsized = the("width-mismatch", engine({"reach": "n-1"}, READS_IDS), HEAD | {"hidden_size": None, "target_hidden_size": H})
    assert "(tokens x 5760 and 8640 x 2880)" in unsized.what


@pytest.mark.parametrize(
    ("capture", "draft", "head", "tensors"),
    [
        ({"reach": "n-1"}, {}, HEAD, None),
        ({"exactly": 4}, {}, HEAD, fc(H, 4 * H)),
        ({"rule": "hf"}, {}, HEAD | ids([36]), TENSORS),
        ({"supported": False}, {}, HEAD, TENSORS),
        ({"reach": "n-1"}, {}, HEAD, TENSORS | {"fc.weight": (3 * H,)}),
    ],
    ids=["nobody knows fc", "refused", "post norm", "unsupported", "no matrix"],
)
def test_nothing_arrives_or_nobody_knows_how_wide_fc_is(capture: Any, draft: Any, head: Any, tensors: Any) -> None:
    assert only("width-mismatch", draft, head, capture=capture, tensors=tensors) == []


@pytest.mark.parametrize(
    ("listed", "tensors", "skips"),
    [
        ([24, 30, 36], fc(3 * H, 3 * H), False),
        ([24], fc(H, H), True),
        ([24], fc(H, 3 * H), True),
        ([24, 36], fc(H, 2 * H), False),
        ([24, 36], fc(2 * H, 3 * H), True),
    ],
    ids=["square fc over three", "square fc over one", "one state of three", "runs", "two states of three"],
)
def test_states_as_wide_as_the_draft_make_some_engines_skip_fc(listed: list[int], tensors: Any, skips: bool) -> None:
    head, skipping = HEAD | ids(listed), {"fc_skipped_when_equal_width": True}
    skipped = [f for f in found("width-mismatch", engine(draft=skipping), head, tensors=tensors) if "skips fc" in f.what]
    width = tensors["fc.weight"][0]
    assert [(f.where, f.how_much) for f in skipped] == ([(FORWARD, f"{width} against {width}")] if skips else [])
    assert all(f.next == "make the engine capture every state that the head needs" for f in skipped)
    assert all("skips fc" not in f.what for f in found("width-mismatch", engine(), head, tensors=tensors))


def test_a_skipped_fc_is_said_once_and_with_the_engines_own_advice() -> None:
    table = engine(draft={"fc_skipped_when_equal_width": True}, remedies={"eagle3": "R"})
    skipped = the("width-mismatch", table, HEAD | ids([24]), tensors=fc(H, 3 * H))
    assert skipped.next == "R"
    assert f"as wide as the draft ({H})" in skipped.what


def test_a_head_that_is_served_as_eagle_is_not_measured() -> None:
    table = engine({"reach": "n-1"}, {"width_default": 4, "target_hidden_size_null": "error"})
    assert report(table, HEAD | {"target_hidden_size": ...}, tensors=TENSORS, kind="eagle").of("made-up==1")[1:] == ()

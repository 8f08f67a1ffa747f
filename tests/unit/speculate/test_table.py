"""The table on a tiny pair: rows agree with the real loop, are paired by prompt, and say so where nothing can be told apart."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import jsonschema
import pytest
import torch

from specalign.acceptance import measure
from specalign.acceptance.report import Measured, as_json, format_json, format_measured, write_html
from specalign.acceptance.table import LoopCheck
from specalign.draft import DraftError, KVCache
from specalign.speculate import TreeShape, decode_speculative
from specalign.speculate.table import Settings, measure_table
from specalign.speculate.variants import variants_of

from .pairs import LAYERS, STATES, make_head, make_target, prompts

GIVEN = {f"p{i}": row for i, row in enumerate(prompts(7, 3, 9, 5, 4, 8, 6, 2, 11, 3))}
SETTINGS = Settings(depth=3, new_tokens=30, loop_prompts=6)


@pytest.fixture(scope="module")
def measured() -> Any:
    head = make_head(norm_before_fc=True, small=True)
    return Measured(measure_table(make_target(), head, STATES, GIVEN, SETTINGS), "t", "d", "p", {"torch": "x"}, 1.5)


def test_every_row_counts_what_the_real_loop_counts(measured: Any) -> None:
    head = make_head(norm_before_fc=True, small=True)
    for variant, row in zip(variants_of(head, STATES, LAYERS), measured.table.rows, strict=True):
        if variant.head is None:
            assert (row.acceptance.length.value, row.acceptance.per_position) == (1.0, ())
            continue
        found = decode_speculative(make_target(), variant.head, variant.states, list(GIVEN.values()), 30, shape=TreeShape(3))
        assert row.acceptance == measure([item.named(name) for name, item in zip(GIVEN, found, strict=True)]), row.name


def test_the_loop_ran_for_two_rows_and_agrees(measured: Any) -> None:
    assert measured.table.loops == (LoopCheck("right", 6, ()), LoopCheck("ids +1", 6, ()))


def test_a_random_head_tells_no_fault_apart_and_the_table_says_so(measured: Any) -> None:
    assert not measured.ok
    assert any("'ids -1' is not told apart from the right way by 10 prompts" in problem for problem in measured.table.problems)


def test_a_loop_that_counts_otherwise_is_a_problem(measured: Any) -> None:
    import dataclasses

    table = dataclasses.replace(measured.table, loops=(LoopCheck("right", 6, ("p1", "p4")),))
    assert "the real loop and the replay count different rounds for 'right' on 2 of 6 prompts, first 'p1'" in table.problems


def test_json_holds_to_its_schema_and_the_text_names_every_row(measured: Any) -> None:
    schema = json.loads(resources.files("specalign").joinpath("schemas/acceptance-1.json").read_text("utf-8"))
    document = json.loads(format_json(measured))
    jsonschema.validate(document, schema)
    assert document == json.loads(json.dumps(as_json(measured)))
    text = format_measured(measured)
    for row in measured.table.rows:
        assert row.name in text
    assert text.count("PROBLEM: ") == len(measured.table.problems)
    for key in schema["required"]:
        assert key in document


def test_the_page_names_every_row_and_escapes(measured: Any, tmp_path: Any) -> None:
    import dataclasses

    page = tmp_path / "page.html"
    write_html(dataclasses.replace(measured, draft="<b>head</b>"), page)
    text = page.read_text("utf-8")
    assert "&lt;b&gt;head" in text
    assert "<b>head" not in text
    for row in measured.table.rows:
        assert row.name in text
    assert "http" not in text.replace("http-equiv", "")


def test_the_teacher_is_right_as_often_as_chain_by_chain() -> None:
    """Each chain by itself, one token at a time, with the text's own tokens."""
    from specalign.speculate.replay import Extent, replay, store_run

    target, head = make_target(), make_head()
    said = decode_speculative(target, head, STATES, [GIVEN["p0"]], 33, shape=TreeShape(3))[0].tokens
    run = store_run(target, "p0", GIVEN["p0"], said, STATES)
    _, teacher = replay(head, STATES, run, Extent(3, 30, frozenset()))
    assert teacher.asked == (29, 28, 27)
    for step in range(3):
        count = 0
        for at in range(29 - step):
            known = [*GIVEN["p0"], *said[: at + 1]]  # the chain begins behind these; then it takes the text's own tokens
            cache = KVCache()
            hidden = head.combine_states([run.states[state][: len(known) - 1] for state in STATES])
            made = head(torch.tensor(known[1:]), hidden, torch.arange(len(known) - 1), cache)
            for more in range(step):
                token, place = torch.tensor([said[at + 1 + more]]), torch.tensor([len(known) - 1 + more])
                made = head(token, made.recycled[-1:], place, cache)
            count += int(head.logits(made.normed[-1]).argmax()) == said[at + 1 + step]
        assert teacher.right[step] == count, step
    assert sum(teacher.right) > 0


@pytest.mark.parametrize(
    ("change", "message"), [({"p": []}, "prompt 0 has no token"), ({}, "0 prompts"), ({"p": [99]}, "holds token 99")]
)
def test_prompts_that_cannot_be_measured(change: dict[str, list[int]], message: str) -> None:
    with pytest.raises(DraftError, match=message):
        measure_table(make_target(), make_head(), STATES, change, SETTINGS)

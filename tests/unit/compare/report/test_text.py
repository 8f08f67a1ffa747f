"""The text: one screen that says where, since when, by how much and why, and never says EQUAL of what was not proven."""

from __future__ import annotations

import dataclasses
import math
import re

import pytest

from specalign.compare.report import format_text
from specalign.compare.report.text import MAX_PROBLEMS, TABLE_KEYS
from specalign.compare.report.words import choose, hex_bits, left_out
from specalign.compare.result import PROBLEMS, Cell, CompareReport, Explanation, RequestMatch
from specalign.dump.dtypes import DTYPES
from tests.unit.compare.report import made

REPORTS = {
    "equal": made.equal_report,
    "different": made.different_report,
    "unproven": made.unproven_report,
    "fingerprint": made.fingerprint_report,
    "hostile": made.hostile_report,
}
every_report = pytest.mark.parametrize("make", REPORTS.values(), ids=REPORTS)


def first_line(text: str) -> str:
    return text.split("\n", 1)[0]


def shown_keys(text: str) -> list[str]:
    return re.findall(r"^(boundary\.\d+) ", text, flags=re.MULTILINE)


def test_equal_says_how_much_was_compared_and_how() -> None:
    assert first_line(format_text(made.equal_report())) == "EQUAL: 24 keys \N{MULTIPLICATION SIGN} 4,096 rows, bit for bit"
    within = made.replaced(made.equal_report(), mode="ulp:1", declared=("rows of r-3: the trainer drops them",))
    assert first_line(format_text(within)).endswith("4,096 rows, within ulp:1; 1 declared gap")
    uneven = made.report((made.boundary(0), made.boundary(1, rows_expected=10, rows_compared=10)))
    assert first_line(format_text(uneven)) == "EQUAL: 2 keys, 4,106 rows in all, bit for bit"


def test_equal_by_fingerprint_is_said_to_be() -> None:
    prints = made.report((made.boundary(0, fingerprint=True), made.boundary(1)))
    assert first_line(format_text(prints)).endswith("bit for bit, 1 of them by fingerprint")


def test_different_names_the_first_key_and_position() -> None:
    line = first_line(format_text(made.different_report()))
    assert line == "DIFFERENT: first at boundary.5 (after block 4), position 131; 19 of 24 keys differ"


def test_a_report_with_problems_only_is_not_proven() -> None:
    assert first_line(format_text(made.unproven_report(), width=200)).startswith(
        "NOT PROVEN: nothing that was compared differs, but"
    )


@pytest.mark.parametrize(
    "report",
    [
        made.report(()),
        made.report((), problems=(made.problem("nothing-compared"),)),
        made.report((made.boundary(0, rows_compared=0, rows_expected=0),)),
        made.report((made.boundary(0, rows_compared=4095),)),
        made.report(problems=(made.problem("replica-differs"),)),
    ],
    ids=["no keys", "nothing compared", "no rows", "a row left out", "a problem"],
)
def test_what_is_not_ok_is_never_called_equal(report: CompareReport) -> None:
    assert not report.ok
    assert format_text(report).startswith("NOT PROVEN: ")


def test_a_mismatch_without_an_example_is_still_different() -> None:
    assert format_text(made.report((made.boundary(0, rows_mismatching=1),))).startswith("DIFFERENT: first at boundary.0")


@every_report
def test_it_is_one_screen(make: made.Make) -> None:
    assert len(format_text(make()).splitlines()) <= 40


def test_a_forward_of_any_length_is_one_screen() -> None:
    many = made.replaced(made.big_report(), problems=(), notes=("note",) * 1000, declared=("gap",) * 1000)
    text = format_text(many)
    assert len(text.splitlines()) <= 45
    assert "and 997 more" in text


@pytest.mark.parametrize("make", [made.equal_report, made.different_report, made.unproven_report])
@pytest.mark.parametrize("width", [60, 100, 160])
def test_lines_are_wrapped(make: made.Make, width: int) -> None:
    prose = [line for line in format_text(make(), width=width).splitlines() if not line.startswith(("key ", "boundary."))]
    assert max(map(len, prose)) <= width


def test_the_four_questions_are_answered() -> None:
    text = format_text(made.different_report(), width=200)
    for claim in (
        'boundary.5 (after block 4), channel 17 of 2,880, BF16\n         request "r-17" in a, "cmpl-93" in b',
        "since    position 131, token 4021",
        "boundary.4 (after block 3) is the last before it that agrees, in all 4,096 rows",
        "by       1 ULP, |a - b| = 0.00781; at most 1 ULP and |a - b| = 0.25 in this key",
        "a  0x3f80  1.0        rank00000/pass00012.safetensors row 3",
        "b  0x3f81  1.0078125  rank00000/pass00040.safetensors row 0",
        "why      rounding: every element",
        "(37 of 37 rows fit)\n         next: look at what block 4",
    ):
        assert claim in text


def test_no_explanation_is_said() -> None:
    assert "no known cause fits" in format_text(made.different_report(explanation=None))


def test_a_gap_before_the_first_divergence_casts_doubt_on_it() -> None:
    keys = (made.boundary(0), made.boundary(1, rows_compared=7), made.boundary(2), made.different_key())
    text = format_text(made.report(keys))
    assert "an earlier one is possible: 1 key before it not compared in full (boundary.1)" in text
    assert "an earlier one is possible" not in format_text(made.different_report())


def test_a_divergence_at_the_first_key_has_nothing_before_it() -> None:
    assert "it is the first of all keys" in format_text(made.report((made.different_key(),)))


@pytest.mark.parametrize("name", DTYPES)
def test_bits_have_the_width_of_their_type(name: str) -> None:
    digits = 2 * DTYPES[name].size
    assert hex_bits(1, name) == "0x" + "1".rjust(digits, "0")
    assert hex_bits(2 ** (4 * digits) - 1, name) == "0x" + "f" * digits
    first = made.divergence(dtype=name, bits_a=0, bits_b=1)
    assert f"a  0x{'0' * digits}  " in format_text(made.report((made.different_key(first=first),)))


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [(math.nan, 1.0, "no distance: one of the two is not a number"), (math.inf, 1.0, "|a - b| = inf"), (-0.0, 0.0, "-0.0")],
)
def test_special_values_are_written_as_such(a: float, b: float, said: str) -> None:
    first = made.divergence(value_a=a, value_b=b, ulp=None if math.isnan(a) else 3)
    assert said in format_text(made.report((made.different_key(first=first),)))


def test_a_nan_among_the_distances_is_not_a_number_of_ulp() -> None:
    text = format_text(made.report((made.different_key(ulp=2**64 - 1, max_abs=math.nan),)))
    assert "at most NaN ULP and |a - b| = NaN" in text
    assert str(2**64 - 1) not in text.replace(",", "")


def test_a_fingerprint_has_no_distance_and_no_value() -> None:
    text = format_text(made.fingerprint_report())
    assert "lane 1 of its fingerprint" in text
    assert "unknown: a fingerprint only says that the row differs" in text
    assert "a  0x000000000000001f  rank" in text
    assert "nan" not in text.lower()


def test_every_problem_is_named_with_what_to_do() -> None:
    text = format_text(made.unproven_report(problems=tuple(made.problem(code) for code in PROBLEMS)), width=200)
    for code, what in PROBLEMS.items():
        assert f"problem  {code}: {what} (12 of 4,096 rows)\n         at request r-0, positions 12-24\n" in text
        assert f"next: do what helps against {code} number 0" in text


def test_problems_that_ask_for_the_same_are_counted() -> None:
    same = tuple(dataclasses.replace(made.problem("rows-missing"), where=f"request r-{i}") for i in range(1000))
    text = format_text(made.unproven_report(problems=same))
    assert "rows-missing \N{MULTIPLICATION SIGN} 1,000" in text
    assert "and at 997 places more" in text
    assert len(text.splitlines()) <= 40


def test_a_flood_of_one_problem_does_not_hide_another() -> None:
    flood = tuple(made.problem("rows-missing", n) for n in range(5 * MAX_PROBLEMS))
    text = format_text(made.unproven_report(problems=(*flood, made.problem("replica-differs"))))
    assert "next: do what helps against replica-differs number 0" in text
    assert f"{len(flood) + 1 - MAX_PROBLEMS} more of these codes are left out" in text


def test_the_table_keeps_what_matters_and_says_what_it_leaves_out() -> None:
    text = format_text(made.different_report())
    keys = shown_keys(text.split("\nkey ")[1])
    assert {"boundary.0", "boundary.4", "boundary.5", "boundary.6", "boundary.23"} <= set(keys)
    assert len(keys) == TABLE_KEYS
    assert sum(int(n) for n in re.findall(r"… (\d+) keys? left out", text)) == 24 - TABLE_KEYS
    assert "… 3 keys left out (all equal)" in text


def test_both_ends_of_the_forward_are_shown_though_nothing_else_speaks_for_them() -> None:
    keys = tuple(made.boundary(b) if b < 5 else made.different_key(f"boundary.{b}", b - 1, ulp=1000 - b) for b in range(90))
    chosen = choose(made.report(keys), TABLE_KEYS)
    assert (chosen[0], chosen[-1]) == (0, 89)


def test_a_key_with_a_gap_is_among_those_that_are_shown() -> None:
    keys = tuple(made.boundary(b, rows_compared=made.ROWS - (b == 41)) for b in range(90))
    assert 41 in choose(made.report(keys), TABLE_KEYS)
    text = format_text(made.report(keys))
    assert "4,095/4,096" in text


def test_left_out_keys_are_counted_by_kind() -> None:
    equal, gap, different = made.boundary(0), made.boundary(1, rows_compared=5), made.different_key()
    assert left_out((equal,)) == "1 key left out (all equal)"
    assert left_out((gap, gap)) == "2 keys left out (all not compared in full)"
    assert left_out((equal, equal, gap, different)) == "4 keys left out (2 equal, 1 different, 1 not compared in full)"


def test_the_account_of_both_sides_adds_up() -> None:
    text = format_text(made.different_report())
    assert "4,220 rows = 4,096 compared + 16 repeated + 100 padding + 8 terminal" in text
    assert "4,163 rows = 4,096 compared + 64 padding + 3 health checks" in text
    wrong = made.replaced(made.equal_report(), a=made.account(rows=made.ROWS + 3))
    assert "4,096 compared + 3 unaccounted" in format_text(wrong)


def test_requests_that_differ_are_named() -> None:
    assert '8 matched (7 by tokens, 1 by continuation); 4 differ: "r-0" = "cmpl-0" (40 of 512 rows)' in format_text(
        made.different_report(), width=200
    )


def test_remarks_tell_of_types_signs_and_values_that_are_not_finite() -> None:
    key = made.boundary(1, dtype_b="F32", zero_signs=3, nonfinite_a=1, nonfinite_b=2)
    line = next(line for line in format_text(made.report((key,))).splitlines() if line.startswith("boundary.1 "))
    assert line.endswith("BF16 \N{NOT EQUAL TO} F32  3 -0 against +0, non-finite: a 1, b 2")


def test_names_out_of_a_dump_start_no_line_and_move_no_cursor() -> None:
    text = format_text(made.hostile_report(), color=False)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not any(line.startswith("red") for line in text.splitlines())
    assert all(char.isprintable() or char == "\n" for char in text)


def test_colour_is_off_unless_asked_for_and_changes_no_word() -> None:
    plain, painted = format_text(made.different_report()), format_text(made.different_report(), color=True)
    assert "\x1b" not in plain
    assert painted.startswith("\x1b[1;31mDIFFERENT\x1b[0m: ")
    assert re.sub(r"\x1b\[[\d;]*m", "", painted) == plain


def test_an_explanation_and_a_request_of_any_length_stay_bounded() -> None:
    match = RequestMatch("a" * 5000, "b" * 5000, 3, 1, "tokens")
    why = Explanation("rounding", "text", "next", 1, 1)
    text = format_text(made.different_report(requests=(match,), explanation=why))
    assert "a" * 41 not in text


def test_a_report_without_cells_or_positions_is_written_all_the_same() -> None:
    bare = made.report(
        (made.boundary(0, cells=()), made.different_key(cells=(Cell(1, 1, None),), rows_mismatching=1)), position_edges=()
    )
    assert format_text(bare).startswith("DIFFERENT")

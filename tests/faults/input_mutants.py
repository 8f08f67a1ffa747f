"""Faults that nobody has reported: code that bends bad input, or that is right on published heads only.

A hostile review of the contracts wrote them; each one passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specalign.layer_ids import RULES
from tests.faults import input_broken as broken
from tests.faults import right
from tests.faults.mutant import UNKNOWN, Mutant, converts, reads

_REVIEW = "a review of the contracts, no report"
_BAD = "test_refuses_bad_ids"
_TWICE, _WIDTH = "test_keeps_duplicates", "test_width_agrees_with_the_ids"


def _bends(row: str, what: str, faulty: Callable[..., Any]) -> Mutant:
    return converts(row, what, _REVIEW, "boundary", right.boundary, faulty, "ids-coerced", _BAD)


INPUT_MUTANTS = (
    converts("long", "only the first six ids converted", _REVIEW, "output", right.output, broken.first_six, UNKNOWN),
    converts("long12", "only the first twelve ids converted", _REVIEW, "output", right.output, broken.first_twelve, UNKNOWN),
    _bends("set", "a set taken for a list", broken.from_a_set),
    _bends("dict", "the keys of a mapping taken for a list", broken.from_a_mapping),
    _bends("text", "text such as '1,2,3' parsed", broken.from_text),
    _bends("bytes", "bytes taken for a list", broken.from_bytes),
    _bends("number", "a single number made into a list", broken.from_a_number),
    _bends("nulls", "nulls dropped from the list", broken.without_nulls),
    _bends("cast", "text, floats and bools cast to int", broken.cast),
    reads("float", "ids read as floats", _REVIEW, broken.read_floats, "ids-become-floats", "test_reads_each_source"),
    reads("twice", "ids named twice read once", _REVIEW, broken.read_once, "duplicates-removed", _TWICE),
    reads("fc-twice", "fc made for the different ids only", _REVIEW, broken.width_once, "width-without-duplicates", _WIDTH),
    converts(
        "i2",
        "boundary n dropped, on targets of 1 to 7 layers",
        "SGLang 0.5.23, no report",
        RULES["output"].narrowed(reaches_n=False),
        right.output_up_to_n_minus_1,
        broken.stop_before_n,
        "boundary-n-dropped",
        "test_reaches_the_last_boundary_as_declared",
        num_layers_range=(1, 7),
    ),
)

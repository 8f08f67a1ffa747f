"""A comparison mode is read from its text, prints as the same text, and refuses everything else with what it expected."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specalign.compare.modes import BITS, MAX_ULP, Mode, parse_mode
from specalign.layer_ids.files import InputError

MODES = st.one_of(
    st.just(BITS),
    st.integers(0, MAX_ULP).map(lambda n: Mode("ulp", n)),
    st.tuples(st.sampled_from(["abs", "rel"]), st.floats(0, allow_nan=False, allow_infinity=False)).map(lambda kx: Mode(*kx)),
)


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("bits", Mode()),
        ("ulp:0", Mode("ulp", 0)),
        ("ulp:3", Mode("ulp", 3)),
        (f"ulp:{MAX_ULP}", Mode("ulp", MAX_ULP)),
        ("abs:0.01", Mode("abs", 0.01)),
        ("abs:0", Mode("abs", 0.0)),
        ("abs:.5", Mode("abs", 0.5)),
        ("abs:5.", Mode("abs", 5.0)),
        ("rel:1e-5", Mode("rel", 1e-5)),
        ("rel:1E+3", Mode("rel", 1000.0)),
    ],
)
def test_a_mode_is_read_from_its_text(text: str, mode: Mode) -> None:
    assert parse_mode(text) == mode


@given(mode=MODES)
def test_a_mode_prints_as_what_is_read_back(mode: Mode) -> None:
    read = parse_mode(str(mode))
    assert read == mode
    assert type(read.bound) is type(mode.bound)
    assert str(read) == str(mode)


@pytest.mark.parametrize(
    "text",
    [
        *("", "bit", "BITS", "bits:", "bits:0", "max:1", "ulps:1"),
        *("ulp", "ulp:", "ulp:-1", "ulp:+1", "ulp:1.0", "ulp:1_0", "ulp: 1", "ulp:٣", "ulp:" + "9" * 5000, f"ulp:{MAX_ULP + 1}"),
        *("abs", "abs:", "abs:nan", "abs:inf", "abs:-1", "abs:-0", "abs:+1", "abs:1e999", "abs:1e", "abs:.", "abs:1,5"),
        *("abs:0x1p3", "rel:1:2", "rel: 1", "rel:1\n"),
    ],
)
def test_what_is_no_mode_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_mode(text)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "bound"),
    [
        *(("nearly", 0), ("bits", 1), ("ulp", -1), ("ulp", 1.0), ("ulp", True), ("ulp", MAX_ULP + 1)),
        *(("abs", -0.5), ("abs", math.nan), ("rel", math.inf), ("abs", 10**400), ("rel", "1")),
    ],
)
def test_a_mode_that_cannot_be_is_refused(kind: str, bound: object) -> None:
    with pytest.raises(InputError, match="comparison mode"):
        Mode(kind, bound)  # type: ignore[arg-type]


def test_a_whole_number_bounds_a_difference_as_well() -> None:
    assert Mode("abs", 1) == parse_mode("abs:1")
    assert str(Mode("abs", 1)) == "abs:1.0"
    assert str(Mode("rel", np.float64(0.5))) == "rel:0.5"


def test_the_default_is_bits() -> None:
    assert BITS.is_bits
    assert str(BITS) == "bits"
    assert not Mode("ulp", 0).is_bits

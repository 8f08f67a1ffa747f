"""The contracts, held against this library itself, and the library's rules against implementations written by hand.

The nightly fuzz run draws 20,000 calls for each property here.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("hypothesis")

from pytest_specalign.contracts import LayerIdContract
from specalign.layer_ids import RULES, dflash_boundaries, eagle3_boundaries, to_boundaries
from tests.faults import right


class TestOurEagle3AndDFlash(LayerIdContract):
    rule = "as_is_if_max_is_n"

    def convert(self, layer_ids: Any, num_layers: int) -> Any:
        return eagle3_boundaries(layer_ids, num_layers)

    def convert_dflash(self, layer_ids: Any, num_layers: int) -> Any:
        return dflash_boundaries(layer_ids, num_layers)


class TestOursWithDuplicatesKept(LayerIdContract):
    rule = RULES["as_is_if_max_is_n"].narrowed(duplicates="keep")

    def convert(self, layer_ids: Any, num_layers: int) -> Any:
        return eagle3_boundaries(layer_ids, num_layers, duplicates="keep")


class TestOurBoundaries(LayerIdContract):
    rule = "boundary"

    def convert(self, layer_ids: Any, num_layers: int) -> Any:
        return to_boundaries(layer_ids, num_layers=num_layers, rule="boundary")


class TestGptOssByHand(LayerIdContract):
    rule = "as_is_if_max_is_n"
    convert_dflash = staticmethod(right.dflash)
    convert = staticmethod(right.gpt_oss)


class TestDeepseekByHand(LayerIdContract):
    rule = "plus_one_if_first_is_1"
    convert_dflash = staticmethod(right.dflash)
    convert = staticmethod(right.deepseek)


class TestOutputByHand(LayerIdContract):
    rule = "output"
    convert_dflash = staticmethod(right.dflash)
    convert = staticmethod(right.output)


class TestDenseByHand(LayerIdContract):
    rule = RULES["output"].narrowed(reaches_n=False)
    convert = staticmethod(right.output_up_to_n_minus_1)

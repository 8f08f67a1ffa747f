"""What the way in which ranks share a tensor means for its rows, its width and its fingerprints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specalign.dump.dtypes import DTYPES
from specalign.dump.errors import DumpError
from specalign.dump.fingerprint import WORD
from specalign.dump.passes import TensorSpec


def full_width(spec: TensorSpec, layout: Mapping[str, int]) -> int:
    """Elements of a whole row, of which this rank may hold a share."""
    return spec.width * (layout.get("tp", 1) if spec.axis == "hidden@tp" else 1)


def first_byte(spec: TensorSpec, coords: Sequence[tuple[str, int]], layout: Mapping[str, int], where: str) -> int:
    """Where in the full row the bytes of this rank begin: what `fingerprint_rows` must be told.

    Raises:
        DumpError: shards of a row that are cut within a word of 4 bytes, whose fingerprints would not add up.
    """
    if spec.axis != "hidden@tp" or layout.get("tp", 1) == 1:
        return 0
    size = spec.width * DTYPES[spec.dtype].size
    if size % WORD:
        raise DumpError(
            f"{where}: {spec.key} has {size} bytes a row on each of {layout['tp']} ranks, and fingerprints add up over shards"
            f" only if these are cut at multiples of {WORD} bytes; gather the shards first, or store the tensor whole"
        )
    return dict(coords).get("tp", 0) * size

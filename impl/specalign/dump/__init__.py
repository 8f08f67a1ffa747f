"""Layerwise dumps: the format, its writer and readers, fingerprints. numpy only; torch is loaded for foreign `.pt` files alone.

`DumpWriter` writes, `open_dump` opens a dump of any format, `validate` tells whether one of ours is whole, `convert` makes one of
ours out of any.
"""

from specalign.dump.convert import convert
from specalign.dump.dtypes import BY_TORCH_NAME, DTYPES, DType
from specalign.dump.errors import DumpError
from specalign.dump.fingerprint import add_shards, fingerprint_rows
from specalign.dump.keys import RowKind, boundary_key, module_key
from specalign.dump.manifest import Manifest
from specalign.dump.opening import open_dump
from specalign.dump.passes import Dump, PassInfo, RawTensor, TensorSpec
from specalign.dump.problems import DumpProblem, ValidationReport
from specalign.dump.reader import SpecalignDump, open_specalign
from specalign.dump.rows import NO_REQUEST, Rows, make_rows
from specalign.dump.summary import DumpSummary, summarize
from specalign.dump.validate import validate
from specalign.dump.writer import DumpWriter

__all__ = [
    "BY_TORCH_NAME",
    "DTYPES",
    "NO_REQUEST",
    "DType",
    "Dump",
    "DumpError",
    "DumpProblem",
    "DumpSummary",
    "DumpWriter",
    "Manifest",
    "PassInfo",
    "RawTensor",
    "RowKind",
    "Rows",
    "SpecalignDump",
    "TensorSpec",
    "ValidationReport",
    "add_shards",
    "boundary_key",
    "convert",
    "fingerprint_rows",
    "make_rows",
    "module_key",
    "open_dump",
    "open_specalign",
    "summarize",
    "validate",
]

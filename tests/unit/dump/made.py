"""Small rows, tensors and dumps for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specalign.dump.dtypes import DTYPES
from specalign.dump.fingerprint import fingerprint_rows
from specalign.dump.keys import RowKind
from specalign.dump.manifest import Manifest
from specalign.dump.nonfinite import count_nonfinite
from specalign.dump.passes import RawTensor, TensorSpec
from specalign.dump.rows import NO_REQUEST, Rows, make_rows
from specalign.dump.writer import DumpWriter

WIDTH = 8
"""Hidden size of the tensors that are made here unless another is asked for."""


def manifest(**fields: Any) -> Manifest:
    """A manifest of one CPU rank, with any field replaced."""
    given: dict[str, Any] = {
        "producer": "a test",
        "versions": {"torch": "2.13.0"},
        "device": "cpu",
        "arch": "cpu",
        "model": {"name": "tiny", "num_layers": 4, "hidden_size": WIDTH},
    }
    return Manifest(**(given | fields))


def prefill(requests: Mapping[str, Sequence[int]], *, start: int = 0) -> Rows:
    """The whole prompts of requests, one after the other: `{"a": [11, 12, 13]}`. `start` is the first position of each."""
    return rows_of(
        [(name, start + at, token, RowKind.PREFILL) for name, tokens in requests.items() for at, token in enumerate(tokens)]
    )


def decode(requests: Mapping[str, tuple[int, int]]) -> Rows:
    """One new token of each request: `{"a": (position, token)}`."""
    return rows_of([(name, position, token, RowKind.DECODE) for name, (position, token) in requests.items()])


def padding(count: int) -> Rows:
    """Rows of padding alone."""
    return rows_of([(None, 0, 0, RowKind.PADDING)] * count)


def no_rows() -> Rows:
    """The pass of a rank that idled."""
    return rows_of([])


def rows_of(entries: Sequence[tuple[str | None, int, int, int]]) -> Rows:
    """Rows out of (request or None, position, token, kind), in this order."""
    ids = list(dict.fromkeys(name for name, *_ in entries if name is not None))
    return make_rows(
        np.array([token for _, _, token, _ in entries], np.int64),
        np.array([position for _, position, _, _ in entries], np.int64),
        np.array([NO_REQUEST if name is None else ids.index(name) for name, *_ in entries], np.int32),
        np.array([int(kind) for *_, kind in entries], np.uint8),
        ids,
    )


def bits(rows: int, width: int = WIDTH, dtype: str = "BF16", *, seed: int = 0) -> NDArray[Any]:
    """Raw bits `[rows, width]` of finite values that differ everywhere, the same for the same arguments."""
    layout = DTYPES[dtype]
    random = np.random.default_rng([seed, rows, width])
    drawn = random.integers(0, 2 ** (8 * layout.size), (rows, width), dtype=np.dtype(layout.raw), endpoint=False)
    if layout.kind == "bool":
        return drawn & np.uint8(1)
    if not layout.is_float:
        return drawn
    # Clear the highest bit of the exponent and the sign: finite in every layout, and never −0.
    return drawn & drawn.dtype.type(2 ** (8 * layout.size - 2) - 1)


def tensor(
    key: str,
    data: NDArray[Any],
    *,
    dtype: str = "BF16",
    site: str = "",
    axis: str = "",
    fingerprint: bool = False,
    counted: bool = False,
) -> RawTensor:
    """A tensor of raw bits, or the fingerprints of its rows, with counts of their non-finite elements or without."""
    spec = TensorSpec(key, dtype, tuple(data.shape), site, axis, fingerprint, counted)
    return RawTensor(
        spec, fingerprint_rows(data) if fingerprint else data, count_nonfinite(data, DTYPES[dtype]) if counted else None
    )


def boundaries(rows: int, numbers: Sequence[int] = (0, 1, 2), *, seed: int = 0, **fields: Any) -> list[RawTensor]:
    """Boundaries with different values each."""
    return [tensor(f"boundary.{b}", bits(rows, seed=1000 * seed + b), **fields) for b in numbers]


def write_dump(
    folder: Path,
    passes: Sequence[tuple[Rows, Sequence[RawTensor]]],
    *,
    manifest: Manifest = manifest(),  # noqa: B008  # frozen
    rank: int = 0,
    coords: Sequence[tuple[str, int]] = (),
    stage: tuple[int, int] | None = None,
) -> Path:
    """Write the passes of one rank to its end, and return the folder."""
    with DumpWriter(folder, manifest, rank=rank, coords=coords, stage=stage) as writer:
        for rows, tensors in passes:
            writer.write_pass(rows, tensors)
    return folder


def small_dump(folder: Path, *, steps: int = 2, numbers: Sequence[int] = (0, 1, 2), seed: int = 0, **where: Any) -> Path:
    """Two requests of 3 and 2 prompt tokens, then `steps` decode passes, with the boundaries `numbers` in every pass."""
    passes = [prefill({"a": [11, 12, 13], "b": [21, 22]})]
    passes += [decode({"a": (3 + step, 14 + step), "b": (2 + step, 23 + step)}) for step in range(steps)]
    made = [(rows, boundaries(len(rows), numbers, seed=seed + at)) for at, rows in enumerate(passes)]
    return write_dump(folder, made, **where)

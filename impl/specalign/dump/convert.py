"""Any dump made one of our own format, whole or as fingerprints."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Collection

from specalign.dump.errors import DumpError
from specalign.dump.fingerprint import fingerprint_rows
from specalign.dump.nonfinite import count_nonfinite, has_nonfinite
from specalign.dump.passes import Dump, PassInfo, RawTensor
from specalign.dump.shards import first_byte
from specalign.dump.writer import DumpWriter
from specalign.layer_ids.files import shown

Progress = Callable[[int, int], None]


def convert(
    dump: Dump,
    folder: str | os.PathLike[str],
    *,
    fingerprint: bool = False,
    keys: Collection[str] | None = None,
    progress: Progress = lambda done, total: None,
) -> int:
    """Write a dump, of whatever format, as a new dump of our own, one pass in memory at a time, and return the number of passes.

    The manifest stays that of the program that recorded it.

    Args:
        folder: of the new dump; it must hold no passes.
        fingerprint: store the fingerprints of the rows in place of the tensors, and count their non-finite elements.
            Fingerprints stay what they are in any case, counted or not.
        keys: only these tensors; None for all.
        progress: called with the number of passes that were written, and of all.

    Raises:
        DumpError: a key that no pass has, passes that do not count up from 0, a dump that cannot be read or written.
    """
    infos = dump.infos()
    _check_keys(dump, infos, keys)
    done = 0
    for rank, passes in itertools.groupby(infos, key=lambda info: info.rank):
        first, *rest = passes
        with DumpWriter(folder, dump.manifest, rank=rank, coords=first.coords, stage=first.stage) as writer:
            for info in (first, *rest):
                _check_pass(first, info, writer.passes)
                tensors = list(dump.load(info, keys).values())
                if fingerprint:
                    tensors = [_fingerprinted(dump, info, tensor) for tensor in tensors]
                writer.write_pass(dump.rows(info), tensors, stage=info.stage)
                done += 1
                progress(done, len(infos))
    return done


def _fingerprinted(dump: Dump, info: PassInfo, tensor: RawTensor) -> RawTensor:
    spec = tensor.spec
    if spec.fingerprint:
        return tensor
    begin, counted = first_byte(spec, info.coords, dump.manifest.layout, info.where), has_nonfinite(tensor.dtype)
    return RawTensor(
        dataclasses.replace(spec, fingerprint=True, counted=counted),
        fingerprint_rows(tensor.data, first_byte=begin),
        count_nonfinite(tensor.data, tensor.dtype) if counted else None,
    )


def _check_keys(dump: Dump, infos: Collection[PassInfo], keys: Collection[str] | None) -> None:
    if not infos:
        raise DumpError(f"{shown(dump.path)}: holds no pass; there is nothing to convert")
    there = {key for tensors in {id(info.tensors): info.tensors for info in infos}.values() for key in tensors}
    absent = sorted(set(keys or ()) - there)
    if absent:
        raise DumpError(f"{shown(dump.path)}: no pass has {', '.join(absent)}; there are {', '.join(sorted(there))}")


def _check_pass(first: PassInfo, info: PassInfo, number: int) -> None:
    if info.number != number:
        raise DumpError(
            f"{info.where}: is pass {info.number} of rank {info.rank}, and pass {number} is missing; passes count up from 0"
        )
    if info.coords != first.coords:
        raise DumpError(f"{info.where}: rank {info.rank} is at {dict(info.coords)}, and before at {dict(first.coords)}")

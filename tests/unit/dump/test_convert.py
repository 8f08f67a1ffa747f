"""Any dump becomes one of ours, and fingerprints of shards add up to those of whole rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from specalign.dump.convert import convert
from specalign.dump.fingerprint import add_shards, fingerprint_rows
from specalign.dump.manifest import Manifest
from specalign.dump.opening import open_dump
from specalign.dump.passes import Dump, PassInfo, RawTensor
from specalign.dump.reader import open_specalign
from specalign.dump.rows import Rows
from specalign.dump.validate import validate
from tests.unit.dump.damaged import names_in, refusal
from tests.unit.dump.made import bits, boundaries, decode, manifest, no_rows, prefill, small_dump, tensor, write_dump


class InMemory(Dump):
    """A dump of some other format."""

    def __init__(self, passes: Sequence[tuple[PassInfo, Rows, list[RawTensor]]], made_by: Manifest) -> None:
        self.path, self.manifest, self._passes = Path("memory"), made_by, passes

    def infos(self) -> Sequence[PassInfo]:
        return [info for info, _, _ in self._passes]

    def rows(self, info: PassInfo) -> Rows:
        return next(rows for one, rows, _ in self._passes if one is info)

    def load(self, info: PassInfo, keys: Collection[str] | None = None) -> Mapping[str, RawTensor]:
        made = next(tensors for one, _, tensors in self._passes if one is info)
        return {one.spec.key: one for one in made if keys is None or one.spec.key in keys}


def in_memory(count: int = 3, *, numbers: Sequence[int] | None = None, ranks: int = 1) -> InMemory:
    passes = []
    for rank in range(ranks):
        for at, number in enumerate(numbers or range(count)):
            rows, tensors = decode({"a": (at, at), "b": (at, at)}), boundaries(2, seed=10 * rank + at)
            specs = {one.spec.key: one.spec for one in tensors}
            coords = (("tp", rank),) if ranks > 1 else ()
            passes.append((PassInfo(rank, number, 2, specs, coords, (0, 4), f"file {number}"), rows, tensors))
    return InMemory(passes, manifest(producer="another program", world=ranks, layout={"tp": ranks} if ranks > 1 else {}))


def test_another_format_becomes_ours(tmp_path: Path) -> None:
    source = in_memory(ranks=2)
    seen: list[tuple[int, int]] = []
    assert convert(source, tmp_path, progress=lambda done, total: seen.append((done, total))) == 6
    assert seen == [(n, 6) for n in range(1, 7)]
    assert validate(tmp_path).ok
    made = open_specalign(tmp_path)
    assert made.manifest == source.manifest
    for old, new in zip(source.infos(), made.infos(), strict=True):
        assert (new.rank, new.number, new.rows, new.coords, new.stage) == (old.rank, old.number, 2, old.coords, (0, 4))
        assert new.tensors == old.tensors
        assert np.array_equal(made.rows(new).tokens, source.rows(old).tokens)
        for key, one in source.load(old).items():
            assert np.array_equal(made.load(new)[key].data, one.data)


def test_ours_becomes_the_same_bytes(tmp_path: Path) -> None:
    a = small_dump(tmp_path / "a")
    convert(open_specalign(a), tmp_path / "b")
    for path in sorted(a.rglob("*.*")):
        if path.name != ".lock":
            assert path.read_bytes() == (tmp_path / "b" / path.relative_to(a)).read_bytes()


def test_as_fingerprints(tmp_path: Path) -> None:
    a = small_dump(tmp_path / "a")
    source = open_specalign(a)
    convert(source, tmp_path / "b", fingerprint=True)
    assert validate(tmp_path / "b").ok
    made = open_specalign(tmp_path / "b")
    for old, new in zip(source.infos(), made.infos(), strict=True):
        assert all(
            spec == dataclasses.replace(old.tensors[key], fingerprint=True, counted=True) for key, spec in new.tensors.items()
        )
        for key, one in made.load(new).items():
            assert np.array_equal(one.data, fingerprint_rows(source.load(old)[key].data))
    convert(made, tmp_path / "c", fingerprint=True)  # what is fingerprints already stays what it is
    assert (tmp_path / "c/rank00000/pass00001.safetensors").read_bytes() == (
        tmp_path / "b/rank00000/pass00001.safetensors"
    ).read_bytes()


def test_fingerprints_of_shards_add_up_to_those_of_the_rows(tmp_path: Path) -> None:
    full, world = bits(3, 16), manifest(world=2, layout={"tp": 2}, model={})
    rows = prefill({"a": [1, 2, 3]})
    for rank in range(2):
        shard = np.ascontiguousarray(full[:, 8 * rank : 8 * rank + 8])
        made = [tensor("boundary.1", shard, axis="hidden@tp")]
        write_dump(tmp_path / "a", [(rows, made)], manifest=world, rank=rank, coords=[("tp", rank)])
    convert(open_specalign(tmp_path / "a"), tmp_path / "b", fingerprint=True)
    dump = open_specalign(tmp_path / "b")
    parts = [dump.load(info)["boundary.1"].data for info in dump.infos()]
    assert np.array_equal(add_shards(parts), fingerprint_rows(full))


def test_shards_that_are_cut_within_a_word_are_refused(tmp_path: Path) -> None:
    made = [tensor("boundary.1", bits(1, 3), axis="hidden@tp")]
    write_dump(
        tmp_path / "a", [(no_rows(), []), (prefill({"a": [1]}), made)], manifest=manifest(layout={"tp": 2}), coords=[("tp", 0)]
    )
    refusal(
        lambda: convert(open_specalign(tmp_path / "a"), tmp_path / "b", fingerprint=True), "boundary.1", "6 bytes", "pass00001"
    )
    assert "end.json" not in names_in(tmp_path / "b" / "rank00000")


def test_only_some_keys(tmp_path: Path) -> None:
    convert(open_specalign(small_dump(tmp_path / "a")), tmp_path / "b", keys=["boundary.2"])
    assert {key for info in open_specalign(tmp_path / "b").infos() for key in info.tensors} == {"boundary.2"}
    refusal(
        lambda: convert(open_specalign(tmp_path / "a"), tmp_path / "c", keys=["boundary.2", "boundary.7"]),
        "no pass has boundary.7",
    )
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(("numbers", "missing"), [((1, 2), 0), ((0, 2), 1)])
def test_passes_that_leave_one_out_are_refused(tmp_path: Path, numbers: Sequence[int], missing: int) -> None:
    refusal(
        lambda: convert(in_memory(numbers=numbers), tmp_path), f"pass {missing} is missing", "file 2" if missing else "file 1"
    )
    refusal(lambda: open_specalign(tmp_path / "nothing"), "nothing")


def test_a_rank_that_moves_is_refused(tmp_path: Path) -> None:
    source = in_memory(2)
    info, rows, tensors = source._passes[1]
    moved = InMemory([source._passes[0], (dataclasses.replace(info, coords=(("tp", 0),)), rows, tensors)], source.manifest)
    refusal(lambda: convert(moved, tmp_path), "file 1", "tp")


def test_nothing_is_not_converted(tmp_path: Path) -> None:
    refusal(lambda: convert(InMemory([], manifest()), tmp_path / "b"), "no pass")
    assert not (tmp_path / "b").exists()


def test_a_dump_that_is_there_stays(tmp_path: Path) -> None:
    a = small_dump(tmp_path / "a")
    before = (a / "rank00000" / "pass00000.safetensors").read_bytes()
    refusal(lambda: convert(open_specalign(a), a, fingerprint=True), "earlier run")
    assert (a / "rank00000" / "pass00000.safetensors").read_bytes() == before
    assert validate(a).ok


def test_opening_tells_the_formats_apart(tmp_path: Path) -> None:
    small_dump(tmp_path / "a")
    assert type(open_dump(tmp_path / "a")).__name__ == "SpecalignDump"
    (tmp_path / "b").mkdir()
    refusal(lambda: open_dump(tmp_path / "b"), tmp_path / "b")
    refusal(lambda: open_dump(tmp_path / "c"), tmp_path / "c")
    (tmp_path / "a" / "rank00000" / "pass00000.safetensors").unlink()
    refusal(lambda: open_dump(tmp_path / "a"), "missing")
    assert len(open_dump(tmp_path / "a", partial=True).infos()) == 2

"""SGLang's `--debug-tensor-dump-output-folder`, and slime's patched variant of it.

A folder `TP{t}_PP{p}_Rank{r}_pid{pid}` a process, with `Pass{n:05d}.pt` (a dict: module path → tensor or list of tensors) or, by
slime's patch, `Chunk{n:05d}.pt` (a list of such dicts). SGLang's own hook writes the file when the top module ends and adds
what the top module and everything behind it returned to the **next** file: `model`, `lm_head` and the logits of forward k stand
in file k + 1, and those of the last forward are lost unless another file follows (sglang `tensor_dump_forward_hook.py`).
slime's patch records the top module before it writes. So a name that the first file lacks belongs to the forward before.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from specalign.dump.errors import DumpError
from specalign.dump.manifest import Manifest
from specalign.dump.passes import PassInfo, TensorSpec
from specalign.dump.readers.base import ForeignDump, GivenRows, names_in, require_numbers, require_there, settle_rows
from specalign.dump.readers.entries import Entry, FileTensor, Notes, fitting, flat_integers, shared_specs
from specalign.dump.readers.places import place, read_model_dims, top_module
from specalign.dump.readers.requests import Batch, Segmenter, forward_mode
from specalign.dump.readers.sglang_files import INFO, Files, Form, Outlines, Plan, Spot, anew, kind_of, plan_of
from specalign.dump.readers.torch_files import Loaded
from specalign.dump.rows import Rows
from specalign.layer_ids.files import quoted, shown

_FOLDER: Final = re.compile(r"TP(?P<tp>\d{1,6})_PP(?P<pp>\d{1,6})_Rank(?P<rank>\d{1,6})_pid(?P<pid>\d+)")
_FILE: Final = re.compile(r"(?P<kind>Pass|Chunk)(?P<number>\d{5,9})\.pt")
_PROXY: Final = ".pp_proxy_tensors."
_BEHIND: Final = ("lm_head", "logits_processor", "pooler")
_MOST_FORMS: Final = 256
"""Passes of any other form are placed one by one."""
_ROLES: Final = ("target", "draft")
_MISSING: Final = (
    "SGLang writes <top>.forward_batch_info.* only if the ForwardBatch is a positional argument of the top module; record with"
    " --forward-hooks, whose files hold input_ids, positions and seq_lens"
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Rank:
    """One process: its place in the layout, its files' contents in order, which names come one file late, and of which names
    outside of the top module it cannot be told, because they run in some forwards only (a vision tower)."""

    folder: Path
    rank: int
    tp: int
    pp: int
    places: tuple[Spot, ...]
    top: str
    late: frozenset[str]
    adrift: frozenset[str]
    forwards: int


class SGLangTensorDump(ForeignDump):
    """The tensor dump of one run, target or draft; see `open_tensor_dump`."""

    def __init__(self, path: Path, *, rows: GivenRows | None = None) -> None:
        require_there(path)
        self._files = Files()
        self._dims = read_model_dims(path)
        notes = Notes()
        outlines = Outlines(self._files)
        self._outlined: dict[Form, Mapping[str, Entry]] = {}
        self._plans: dict[Form, Plan] = {}
        self._ranks = {rank.rank: rank for rank in _ranks(path, outlines)}
        layout = {"tp": max(r.tp for r in self._ranks.values()) + 1, "pp": max(r.pp for r in self._ranks.values()) + 1}
        world = layout["tp"] * layout["pp"]
        if layout["tp"] > 1:
            notes.add("how modules are shared by the tensor-parallel ranks is not recorded: all are taken for copies")
        manifest = Manifest(
            "sglang tensor dump", model=self._dims, layout={a: n for a, n in layout.items() if n > 1}, world=world
        )
        passes = [made for rank in self._ranks.values() for made in self._passes_of(rank, outlines, rows, layout, notes)]
        super().__init__(path, manifest, passes, notes.texts())

    def _passes_of(
        self, rank: _Rank, outlines: Outlines, given: GivenRows | None, layout: Mapping[str, int], notes: Notes
    ) -> Iterator[tuple[PassInfo, Rows]]:
        segmenter = Segmenter(microbatches=layout["pp"] > 1)
        specs: dict[tuple[TensorSpec, ...], Mapping[str, TensorSpec]] = {}
        whole: dict[tuple[int, int], Mapping[str, TensorSpec]] = {}  # of outlines that are kept, and so keep their ids
        coords = tuple((axis, value) for axis, value in (("tp", rank.tp), ("pp", rank.pp)) if layout[axis] > 1)
        for number in range(rank.forwards):
            where = rank.places[number].where
            batch = _batch(outlines.read(rank.places[number]), where)
            told = None if batch is None else segmenter.rows(batch)
            found = settle_rows(told, given, number, where, _MISSING)
            outline = self._outline(rank, number, outlines)
            shared = whole.get((id(outline), len(found)))
            if shared is None:
                kept = fitting(outline, len(found), where, notes)
                shared = shared_specs(kept.values(), specs)
                if len(kept) == len(outline) and any(outline is known for known in self._outlined.values()):
                    whole[id(outline), len(found)] = shared
            yield PassInfo(rank.rank, number, len(found), shared, coords, None, where), found
        for text in (*segmenter.notes, *_lost(rank)):
            notes.add(text)

    def _entries(self, info: PassInfo) -> Mapping[str, Entry]:
        rank = self._ranks[info.rank]
        spots, form = self._spots(rank, info.number, self._files)
        plan = None if form is None else self._plans.get(form)
        if plan is not None:
            return plan.entries([self._files.open(spot.file) for spot in spots])
        return self._placed(rank, info.number, [self._files.read(spot) for spot in spots])

    def _outline(self, rank: _Rank, number: int, outlines: Outlines) -> Mapping[str, Entry]:
        """The entries of a forward, of tensors without values; passes of one form share them."""
        spots, form = self._spots(rank, number, outlines)
        known = None if form is None else self._outlined.get(form)
        if known is not None:
            return known
        records = [outlines.read(spot) for spot in spots]
        if form is None or len(self._outlined) == _MOST_FORMS:
            return self._placed(rank, number, records)
        records = [anew(record) for record in records]
        entries = self._outlined[form] = self._placed(rank, number, records)
        self._plans[form] = plan_of(entries, records)
        return entries

    @staticmethod
    def _spots(rank: _Rank, number: int, files: Files | Outlines) -> tuple[list[Spot], Form | None]:
        """Where a forward lies, and of which form it is; None if that is not known."""
        more = bool(rank.late) and number + 1 < len(rank.places)
        spots = list(rank.places[number : number + 1 + more])
        forms = [files.form(spot) for spot in spots]
        known = [form for form in forms if form is not None]
        return spots, (rank.rank, *known) if len(known) == len(forms) else None

    def _placed(self, rank: _Rank, number: int, records: Sequence[Mapping[str, Loaded]]) -> dict[str, Entry]:
        here, *after = records
        outputs = {name: value for name, value in here.items() if name not in rank.late | rank.adrift}
        for record in after:
            outputs |= {name: value for name, value in record.items() if name in rank.late}
        where = rank.places[number].where
        tensors = {name: _tensors(name, value, where) for name, value in outputs.items() if INFO not in name}
        dims = self._dims.get("num_layers")
        return place(tensors, rank.top, dims if isinstance(dims, int) else None, where)


def detect(path: Path) -> bool:
    """Whether a folder looks like a tensor dump, by its names alone."""
    names = names_in(path)
    inner = [name for role in _ROLES if role in names for name in names_in(path / role)]
    return _FOLDER.fullmatch(path.name) is not None or any(_FOLDER.fullmatch(name) for name in (*names, *inner))


def open_tensor_dump(path: Path, *, rows: GivenRows | None = None) -> SGLangTensorDump:
    """A tensor dump: the folder with one folder a process, or one of those.

    Args:
        rows: of each pass by number, for models to which SGLang hands no positional `ForwardBatch`.

    Raises:
        DumpError: no such dump, a gap in its files, or rows that cannot be told.
    """
    return SGLangTensorDump(path, rows=rows)


def _ranks(path: Path, files: Outlines) -> list[_Rank]:
    names = names_in(path)
    roles = [role for role in _ROLES if role in names and any(_FOLDER.fullmatch(n) for n in names_in(path / role))]
    if roles:
        raise DumpError(f"{shown(path)}: holds {' and '.join(roles)} of a speculative run; open one of them, {path / roles[0]}")
    if _FOLDER.fullmatch(path.name):
        return [_rank(path, files)]
    folders = [path / name for name in names if _FOLDER.fullmatch(name)]
    if not folders:
        raise DumpError(f"{shown(path)}: holds no folder TP<t>_PP<p>_Rank<r>_pid<pid> of SGLang's tensor dump")
    ranks = [_rank(folder, files) for folder in folders]
    for rank in ranks:
        twins = [other.folder.name for other in ranks if other.rank == rank.rank]
        if len(twins) > 1:
            raise DumpError(f"{shown(path)}: {' and '.join(twins)} are runs of one rank; keep one run a folder")
    return ranks


def _rank(folder: Path, files: Outlines) -> _Rank:
    match = _FOLDER.fullmatch(folder.name)
    places = tuple(_places(folder, files.files))
    held = [frozenset(files.read(spot)) for spot in places]
    names = set().union(*held)
    infos = sorted({name.split(INFO)[0] for name in names if INFO in name})
    if len(infos) > 1:
        raise DumpError(f"{shown(folder)}: batches were written for {', '.join(infos)}: one top module is read")
    top = infos[0] if infos else top_module(sorted(names))
    outside = {name for name in names - held[0] if not name.startswith(f"{top}.") or name.startswith(f"{top}{_PROXY}")}
    late = frozenset(n for n in outside if n == top or _PROXY in n or n.rpartition(".")[2] in _BEHIND)
    # The last file may hold what the forward before it returned, and nothing else.
    forwards = len(places) - (len(places) > 1 and held[-1] <= late)
    for spot, own in zip(places[:forwards], held, strict=False):
        if own <= late:
            raise DumpError(f"{spot.where}: holds nothing of its own forward, and files follow it; are these files of one run?")
    ids = (0, 0, 0) if match is None else (int(match["rank"]), int(match["tp"]), int(match["pp"]))
    return _Rank(folder, *ids, places, top, late, frozenset(outside - late), forwards)


def _places(folder: Path, files: Files) -> Iterator[Spot]:
    matches = [match for match in map(_FILE.fullmatch, names_in(folder)) if match]
    kinds = {match["kind"] for match in matches}
    if len(kinds) != 1:
        raise DumpError(
            f"{shown(folder)}: holds {' and '.join(sorted(kinds)) or 'neither Pass nor Chunk'} files; one kind is read"
        )
    numbered = {int(match["number"]): folder / match[0] for match in matches}
    require_numbers(list(numbered), kinds.pop(), shown(folder))
    for number in sorted(numbered):
        if "Chunk" in numbered[number].name:
            yield from (Spot(numbered[number], index) for index in range(files.count(numbered[number])))
        else:
            yield Spot(numbered[number])


def _batch(record: Mapping[str, Loaded], where: str) -> Batch | None:
    fields = {name.split(INFO)[1]: value for name, value in record.items() if INFO in name}
    if "input_ids" not in fields or "positions" not in fields:
        return None
    known = {name: flat_integers(value, name, where) for name, value in fields.items() if isinstance(value, FileTensor)}
    rids = fields.get("rids")
    if rids is not None and not (isinstance(rids, list) and all(isinstance(rid, str) for rid in rids)):
        raise DumpError(f"{where}: rids is {quoted(rids)}, not a list of request ids")
    return Batch(
        known["input_ids"],
        known["positions"],
        known.get("seq_lens"),
        known.get("extend_seq_lens"),
        known.get("req_pool_indices"),
        tuple(rids) if rids else None,
        forward_mode(fields.get("forward_mode"), where),
        where,
    )


def _tensors(name: str, value: Loaded, where: str) -> Sequence[FileTensor]:
    parts = value if isinstance(value, list) else [value]
    for part in parts:
        if not isinstance(part, FileTensor):
            raise DumpError(f"{where}: {name} holds {kind_of(part)}, not a tensor or a list of tensors")
    return parts


def _lost(rank: _Rank) -> list[str]:
    lost = [f"{name} is left out: of which forward it is cannot be told" for name in sorted(rank.adrift)]
    if not rank.late or len(rank.places) > rank.forwards:
        return lost
    names = ", ".join(sorted(rank.late))
    return [
        *lost,
        f"{names} of the last forward (pass {rank.forwards - 1}) were never written: SGLang writes them with the next forward",
    ]

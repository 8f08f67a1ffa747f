"""`record_layers`: a context manager that records the forwards of a model into a dump."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

from torch import nn

from specalign.capture.parts import ModelParts, find_parts
from specalign.capture.passes import Reading, ReadInput, ReadOutput, parameter_names
from specalign.capture.plan import CapturePlan
from specalign.capture.stages import Stage
from specalign.capture.stream import Complete, Copying
from specalign.dump.manifest import Manifest
from specalign.dump.writer import DumpWriter
from specalign.layer_ids import POST_NORM, State
from specalign.recorder.copying import Copier, Stats
from specalign.recorder.errors import RecordError
from specalign.recorder.finding import Rows
from specalign.recorder.follow import Follower, Wanted, find_modules
from specalign.recorder.names import RequestNames, Requests
from specalign.recorder.place import default_rank, describe
from specalign.recorder.recompute import Recomputation
from specalign.recorder.sink import Layout, Mode

Order = Literal["batch_first", "sequence_first"]
MAX_PENDING_BYTES = 4 << 30


class Recording(contextlib.AbstractContextManager["Recording"]):
    """Made by `record_layers`; see there. Enter it once.

    Attributes:
        path: the folder of the dump.
        stats: what has been recorded so far, and whether the writer kept up.
    """

    def __init__(
        self,
        followers: Sequence[Follower],
        path: Path,
        manifest: Manifest,
        *,
        rank: int,
        coords: Sequence[tuple[str, int]],
        recomputations: Sequence[Recomputation],
        max_pending_bytes: int,
        reserve_bytes: int,
        resume: bool,
    ) -> None:
        self.path, self.stats = path, Stats()
        self._followers, self._manifest, self._recomputations = tuple(followers), manifest, tuple(recomputations)
        self._rank, self._coords, self._resume = rank, tuple(coords), resume
        self._max_pending_bytes, self._reserve_bytes = max_pending_bytes, reserve_bytes
        self._copier: Copier | None = None
        self._writer: DumpWriter | None = None
        self._phase: Literal["new", "open", "closed"] = "new"

    @property
    def rank_folder(self) -> Path:
        """Where this rank's passes lie. Raises `RecordError` before the recording is entered."""
        if self._writer is None:
            raise RecordError("the recording has not been entered: use it in a with statement")
        return self._writer.folder

    def flush(self) -> None:
        """Wait until every forward that is over is on disk. Raises `RecordError` if writing failed."""
        if self._copier is not None:
            self._copier.flush()

    def __enter__(self) -> Recording:
        if self._phase != "new":
            raise RecordError(f"this recording is {self._phase}: it is entered once. Call record_layers again for another")
        self._phase = "open"
        with contextlib.ExitStack() as undo:
            self._writer = DumpWriter(
                self.path, self._manifest, rank=self._rank, coords=self._coords, stage=self._stage(), resume=self._resume
            )
            undo.callback(self._writer.close, complete=False)
            self._copier = Copier(max_pending_bytes=self._max_pending_bytes, reserve_bytes=self._reserve_bytes)
            self.stats = self._copier.stats
            undo.callback(self._copier.close)
            for follower in self._followers:
                undo.callback(follower.stop)
                follower.start(self._copier, self._writer)
            undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        problems = self._end(failed=error is not None)
        self._phase = "closed"
        if not problems:
            return
        if error is None:
            raise problems[0]
        for problem in problems:
            error.add_note(f"while recording into {self.path}: {problem}")

    def _end(self, *, failed: bool) -> list[Exception]:
        """Take hooks off, empty the queue, end the thread, close the dump: all of it, whatever fails."""
        problems: list[Exception] = []
        for follower in self._followers:
            follower.stop()
        steps = [] if self._copier is None else [self._copier.close]
        if not failed:
            steps += [self._check_seen, *(item.check for item in self._recomputations)]
        for step in steps:
            try:
                step()
            except Exception as problem:  # each is reported, none keeps the rest from being closed
                problems.append(problem)
        if self._writer is not None:
            try:
                self._writer.close(complete=not failed and not problems and not self._has_holes())
            except Exception as problem:
                problems.append(problem)
        return problems

    def _has_holes(self) -> bool:
        """Whether an error that the caller caught left a forward out."""
        return (self._copier is not None and self._copier.failed) or any(follower.lost for follower in self._followers)

    def _check_seen(self) -> None:
        idle = [follower for follower in self._followers if not follower.forwards]
        if idle:
            raise RecordError(
                f"{len(idle)} of {len(self._followers)} models ran no forward while {self.path} was recorded: they were not"
                " called, or run where hooks do not (a CUDA graph, compiled code, another copy of the model)"
            )

    def _stage(self) -> tuple[int, int] | None:
        stages = [follower.parts.stage for follower in self._followers]
        return (stages[0].start, stages[0].end) if len(stages) == 1 else None


def record_layers(
    model: nn.Module | Sequence[nn.Module],
    out: str | os.PathLike[str],
    *,
    layers: Sequence[int] | None = None,
    modules: Sequence[str] = (),
    mode: Mode = "full",
    post_norm: bool = False,
    residual_fp32: bool = False,
    rows: Rows | None = None,
    requests: Requests | None = None,
    order: Order | None = None,
    stage: Stage | None = None,
    stages: Sequence[Stage] | None = None,
    blocks: Sequence[nn.Module] | None = None,
    final_norm: nn.Module | None = None,
    read_input: ReadInput | None = None,
    read_output: ReadOutput | None = None,
    complete: Complete | None = None,
    recompute: Literal["skip", "compare"] = "skip",
    rank: int | None = None,
    world: int | None = None,
    coords: Sequence[tuple[str, int]] = (),
    layout: Mapping[str, int] | None = None,
    sequence_parallel: int = 1,
    axes: Mapping[str, str] | None = None,
    facts: Mapping[str, str | int] | None = None,
    max_pending_bytes: int = MAX_PENDING_BYTES,
    reserve_bytes: int = 0,
    resume: bool = False,
) -> Recording:
    """Record every forward that runs while the context is open, one pass each:

        with record_layers(model, "dump") as recording:
            model(input_ids, attention_mask=mask)
        print(recording.stats.kept_up)

    Recorded are boundary 0, boundary i+1 for each layer i asked for, and what else is asked for, as the model computed them: the
    copy is made before the model goes on. Forwards that raise are not recorded. In backward nothing is recorded.

    Args:
        model: the module that you call, or the virtual-pipeline chunks of this rank. Each forward of a chunk is a pass of its own
            with the layers of that chunk; the comparer joins passes by request and position. Name sequences (`requests=`) if
            chunks do not all see the micro-batches in one order.
        out: the folder of the dump; it is made.
        layers: global block numbers 0..n-1; all by default. A stage records those that it has.
        modules: fnmatch patterns of dotted names (`*.mlp`, `model.layers.*.self_attn`, `lm_head`) of modules whose output is
            recorded too, in blocks of `layers`: its first tensor.
        mode: "full" values; "fingerprint": 16 bytes a row instead; "both".
        post_norm: record the final norm's output as well.
        residual_fp32: record the residual sum behind each block before it is rounded, as `module.layers.<i>.residual_fp32`.
        rows: `(args, kwargs) -> RowBatch` says which row is what; else it is found (see `finding`).
        requests: ids of the sequences of each forward, in order, or a function that gives them. By default sequence b of
            forward k is `pass<k>/<b>`, and a forward that goes on from a cache goes on with the names of those that filled it.
        order: whether tensors are `[batch, seq, width]` or `[seq, batch, width]`; by default the latter for Megatron's blocks.
        stage, stages: which blocks these are, if they are not all of the target's; `stages` for a list of models.
        blocks, final_norm, read_input, read_output, complete: as in `capture_states`; `blocks` for a single model.
        recompute: "skip" what activation checkpointing runs again inside backward, or "compare" it with the first run, bit for
            bit by fingerprints; a difference is raised at the end and names the layer.
        rank, world: global rank and number of ranks that write; by default torch.distributed's, or torchrun's variables.
        coords: this rank's place in the parallel layout, ("tp", 1), …
        layout: the size of each axis.
        sequence_parallel: the number of ranks that the rows of block outputs are split over.
        axes: shard axis by pattern of keys, for modules whose output is split: `{"module.layers.*.linear_fc1": "hidden@tp"}`.
        facts: more for the manifest about the model.
        max_pending_bytes: bytes that may wait for the disk. Once they do, hooks wait for the writer: `stats.kept_up` is False.
        reserve_bytes: page-locked memory to allocate on entering instead of during the first forward.
        resume: go on in a dump that an earlier run left.

    Raises:
        CaptureError, RecordError, DumpError: here or on entering, if the model or the folder cannot be used; from inside a
            forward, if what is seen is not what was asked for, or if writing an earlier pass failed; on leaving, if writing
            failed, if there was no forward, or if recomputation gave other bits. Hooks are removed in every case.
    """
    models = [model] if isinstance(model, nn.Module) else list(model)
    given = _given_stages(models, stage, stages, blocks)
    if mode not in ("full", "fingerprint", "both") or recompute not in ("skip", "compare"):
        raise RecordError(f"mode={mode!r}, recompute={recompute!r}: full, fingerprint, both; skip, compare")
    parts = [
        find_parts(item, blocks=blocks, final_norm=final_norm, stage=part, needs_norm=post_norm)
        for item, part in zip(models, given, strict=True)
    ]
    plan, numbers = _plan(parts, layers, post_norm)
    found = [find_modules(item, part, tuple(modules), numbers) for item, part in zip(models, parts, strict=True)]
    _check_patterns(parts, [unused for _, unused in found])
    recomputations = [Recomputation() for _ in models] if recompute == "compare" else [None] * len(models)
    followers = [
        Follower(
            item,
            part,
            Wanted(plan, own_modules, numbers & _local(part) if residual_fp32 else frozenset(), mode, _parameter_names(part)),
            copying=Copying(complete=complete),
            reading=Reading(read_input, read_output),
            layout=Layout(
                _is_sequence_first(part, order), sequence_parallel, dict(axes or {}), tuple(coords), dict(layout or {})
            ),
            names=RequestNames(requests),
            rows=rows,
            recomputation=recomputation,
        )
        for item, part, (own_modules, _), recomputation in zip(models, parts, found, recomputations, strict=True)
    ]
    found_rank, found_world = default_rank()
    manifest = describe(
        models[0],
        num_layers=plan.num_layers,
        layout=layout or {},
        world=found_world if world is None else world,
        more=facts or {},
    )
    return Recording(
        followers,
        Path(out),
        manifest,
        rank=found_rank if rank is None else rank,
        coords=coords,
        recomputations=[item for item in recomputations if item is not None],
        max_pending_bytes=max_pending_bytes,
        reserve_bytes=reserve_bytes,
        resume=resume,
    )


def _given_stages(
    models: Sequence[nn.Module], stage: Stage | None, stages: Sequence[Stage] | None, blocks: Sequence[nn.Module] | None
) -> list[Stage | None]:
    if not models or not all(isinstance(item, nn.Module) for item in models):
        raise RecordError("record_layers records a module, or a list of at least one")
    if len(models) == 1 and stages is None:
        return [stage]
    if stage is not None or stages is None or len(stages) != len(models) or blocks is not None:
        count = "none" if stages is None else len(stages)
        raise RecordError(f"{len(models)} models need stages=[…], one each, and no stage= or blocks=; {count} came")
    spans = sorted((item.start, item.end) for item in stages)
    if any(end > start for (_, end), (start, _) in itertools.pairwise(spans)):
        raise RecordError(f"the stages {spans} (first block, end) overlap: one layer would be recorded twice")
    return list(stages)


def _plan(parts: Sequence[ModelParts], layers: Sequence[int] | None, post_norm: bool) -> tuple[CapturePlan, frozenset[int]]:
    totals = {part.stage.num_layers for part in parts}
    if len(totals) != 1:
        raise RecordError(f"the stages belong to targets of {sorted(totals)} layers")
    n = totals.pop()
    asked = list(range(n)) if layers is None else list(layers)
    wrong = [layer for layer in asked if type(layer) is not int or not 0 <= layer < n]
    if wrong or not asked:
        raise RecordError(
            f"layers={asked}: a {n}-layer target has the layers 0..{n - 1} (block numbers), and one at least is needed"
        )
    states: list[State] = sorted({0, *(layer + 1 for layer in asked)})  # type: ignore[assignment]
    return CapturePlan((*states, POST_NORM) if post_norm else tuple(states), n), frozenset(asked)


def _check_patterns(parts: Sequence[ModelParts], unused: Sequence[set[str]]) -> None:
    everywhere = set.intersection(*unused)
    whole = sum(part.stage.end - part.stage.start for part in parts) == parts[0].stage.num_layers
    if everywhere and whole:
        raise RecordError(f"modules={sorted(everywhere)}: no module of the model has such a name")


def _parameter_names(part: ModelParts) -> dict[int, list[str]]:
    return {id(block): parameter_names(block) for block in part.blocks}


def _local(part: ModelParts) -> frozenset[int]:
    return frozenset(range(part.stage.start, part.stage.end))


def _is_sequence_first(part: ModelParts, order: Order | None) -> bool:
    if order not in (None, "batch_first", "sequence_first"):
        raise RecordError(f"order={order!r}: batch_first and sequence_first are the two choices")
    # Megatron's layers carry their number and take the sequence first.
    return order == "sequence_first" if order else any(hasattr(block, "layer_number") for block in part.blocks)

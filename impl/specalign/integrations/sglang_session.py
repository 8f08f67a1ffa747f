"""One dump of one SGLang model: what its hooks hand in, put together into passes."""

from __future__ import annotations

import atexit
import dataclasses
import multiprocessing.util
import re
import signal
import sys
import threading
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from specalign.capture.passes import Seen, copy_of, held_stream
from specalign.capture.refusals import check_running, is_recording_graph
from specalign.capture.stream import Copying, check_copyable, split_output
from specalign.dump.keys import RESIDUAL_FP32, boundary_key, module_key, parse_key
from specalign.dump.manifest import Manifest
from specalign.dump.writer import DumpWriter
from specalign.integrations.sglang_place import DISABLE, place, server_args
from specalign.recorder.copying import Copier
from specalign.recorder.errors import RecordError
from specalign.recorder.follow import fp32_sum
from specalign.recorder.place import device_names, loaded_versions, version_of
from specalign.recorder.record import MAX_PENDING_BYTES
from specalign.recorder.sglang_rows import find_forward_batch, forward_batch_rows, is_draft_batch
from specalign.recorder.sink import Layout, Mode, Sink

_BLOCK = re.compile(r"(?:^|\.)layers\.(\d+)$")
_INSIDE = re.compile(r"(?:^|\.)layers\.(\d+)\.")


@dataclasses.dataclass(frozen=True, slots=True)
class HookSpec:
    """The config of one hook; see `sglang.record_layers`."""

    name: str
    folder: str
    key: str = ""
    mode: Mode = "full"
    model: Literal["target", "draft", "both"] = "target"
    end: bool = False
    residual_fp32: bool = False
    num_layers: int = 0
    draft_folder: str = ""
    max_pending_bytes: int = MAX_PENDING_BYTES
    reserve_bytes: int = 0

    @property
    def block(self) -> int | None:
        """The number of the block that the module is, None if it is none."""
        match = _BLOCK.search(self.name)
        return int(match[1]) if match else None

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> HookSpec:
        """Raises `RecordError` for anything that is not understood."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(config) - set(fields))
        if unknown or not isinstance(config.get("name"), str) or not isinstance(config.get("folder"), str):
            raise RecordError(
                "the config of a recording hook holds name, folder and if need be"
                f" {', '.join(sorted(set(fields) - {'name', 'folder'}))}; not understood: {unknown or dict(config)}"
            )
        kinds = {"str": str, "bool": bool, "int": int}
        wrong = [name for name, value in config.items() if type(value) is not kinds.get(str(fields[name].type), str)]
        if wrong:
            raise RecordError(f"{config['name']}: {wrong[0]}={config[wrong[0]]!r} is a {type(config[wrong[0]]).__name__}")
        spec = cls(**config)
        if spec.mode not in ("full", "fingerprint", "both") or spec.model not in ("target", "draft", "both"):
            raise RecordError(
                f"{spec.name}: mode={spec.mode!r} and model={spec.model!r} are not among full,"
                " fingerprint, both and target, draft, both"
            )
        return dataclasses.replace(
            spec,
            key=spec.key or ("" if spec.end else _key_of(spec.name)),
            draft_folder=spec.draft_folder or f"{spec.folder}.draft",
        )


class _Pass:
    """A forward in progress. Its rows are known once a module that gets the ForwardBatch has run; what comes before waits."""

    def __init__(self) -> None:
        self.sink: Sink | None = None
        self.skipped = False
        self.rows = 0
        self.waiting: list[tuple[str, str, Tensor]] = []
        self.names: list[str] = []


class Session:
    """The dump of one model of this process. Forwards of one model follow one another; hooks run in the thread of the forward."""

    def __init__(self, folder: str, role: Literal["target", "draft"], spec: HookSpec) -> None:
        self.role, self._mode = role, spec.mode
        self._expected: dict[str, HookSpec] = {}
        self._fired: set[str] | None = None
        self._current: _Pass | None = None
        self._closed = self._lost = False
        rank, world, axes = place()
        self._parts = axes.get("pp", (0, 1))[1]
        self._stage = (0, spec.num_layers) if spec.num_layers and self._parts == 1 and role == "target" else None
        coords = tuple((axis, at) for axis, (at, size) in axes.items() if size > 1)
        manifest = _manifest(spec, role, world, {axis: size for axis, (_, size) in axes.items()})
        self._writer = DumpWriter(folder, manifest, rank=rank, coords=coords, stage=self._stage)
        self._copier = Copier(max_pending_bytes=spec.max_pending_bytes, reserve_bytes=spec.reserve_bytes)
        self.stats = self._copier.stats
        _close_at_exit(self.close)

    def expect(self, spec: HookSpec) -> None:
        """A hook of this session was made."""
        if spec.mode != self._mode:
            raise RecordError(f"{spec.name}: mode={spec.mode!r}, and the hooks before it said {self._mode!r}: one dump, one mode")
        self._expected[spec.name] = spec

    def fire(self, spec: HookSpec, module: nn.Module, args: Any, output: Any) -> None:
        """A module has run."""
        if self._closed:
            return
        _refuse_graph_and_compiler()
        args = args if isinstance(args, tuple) else (args,)
        if self._current is not None and spec.name in self._current.names:
            self._end()  # no module ended the pass: it is over when the first one runs again
        if self._current is None:
            self._copier.check()
            self._current = _Pass()
        current = self._current
        current.names.append(spec.name)
        try:
            self._find_rows(current, args)
            if not spec.end and not current.skipped:
                self._take(current, spec, args, output)
        except BaseException:
            self._lost = True
            self._discard()
            raise
        if spec.end:
            self._end()

    def close(self) -> None:
        """Write what is in flight, end the dump. Idempotent. Raises the error of the writer's thread, if no hook has."""
        if self._closed:
            return
        self._closed = True
        whole = True
        try:
            if self._current is not None and set(self._current.names) == (self._fired or set(self._expected)):
                self._end()
            self._lost = self._lost or self._current is not None  # a forward that broke off, or was still running
            self._discard()
            self._copier.close()
        except BaseException:
            whole = False
            raise
        finally:
            self._writer.close(complete=whole and not self._copier.failed and not self._lost)

    def _find_rows(self, current: _Pass, args: tuple[Any, ...]) -> None:
        batch = find_forward_batch(args)
        if batch is None or current.sink is not None or current.skipped:
            return
        rows = forward_batch_rows(batch)
        if rows is None:  # no request ids: a warm-up, or a DFlash draft, whose batches look like the target's
            current.skipped = True
            self.stats.skipped += 1
            current.waiting.clear()
            return
        if is_draft_batch(batch) != (self.role == "draft"):
            raise RecordError(
                f"a hook of the {self.role} model got a ForwardBatch of the other one (spec_info"
                f" {type(getattr(batch, 'spec_info', None)).__name__}): the order in which SGLang builds runners is not the one"
                " that is known. Give target and draft other module names in --forward-hooks"
            )
        current.rows = len(rows)
        opened = self._copier.open()
        try:
            current.sink = Sink(opened, rows, self._mode, Layout())
        except BaseException:
            opened.discard()
            raise
        for key, site, tensor in current.waiting:
            current.sink.put(key, tensor, site=site)
        current.waiting.clear()

    def _take(self, current: _Pass, spec: HookSpec, args: tuple[Any, ...], output: Any) -> None:
        key, site = spec.key, _SITES.get(parse_key(spec.key).kind, "")
        seen = _seen(spec, args, output)
        if key == "boundary.0":
            site = "pre-block"
        # The next norm adds in place, so this copy is made now, on the stream that the model runs on.
        alone = current.sink is not None and not current.sink.keeps_values and seen.held is None and seen.residual is None
        if alone:
            check_copyable(seen.hidden, None, Copying(), spec.name)
        self._put(current, key, site, seen.hidden if alone else copy_of(seen, Copying(), spec.name))
        if spec.residual_fp32 and spec.block is not None:
            self._put(current, module_key(RESIDUAL_FP32, spec.block), "post-block", fp32_sum(seen, spec.block))

    def _put(self, current: _Pass, key: str, site: str, value: Tensor) -> None:
        if current.sink is None:
            current.waiting.append((key, site, value))
        else:
            current.sink.put(key, value, site=site)

    def _end(self) -> None:
        current, self._current = self._current, None
        if current is None or current.skipped:
            return
        if current.sink is None:
            raise RecordError(
                f"none of {', '.join(current.names[:4])} gets a ForwardBatch, so that no row can be told: hook a block, or the"
                " model that holds the blocks with end"
            )
        try:
            self._check_complete(current)
            current.sink.commit(self._writer, self._stage, f"a pass of the {self.role}")
        except BaseException:
            self._lost = True
            current.sink.discard()
            raise

    def _check_complete(self, current: _Pass) -> None:
        names = set(current.names)
        if self._fired is None and current.rows:
            missing = sorted(set(self._expected) - names)
            if missing and self._parts == 1 and self.role == "target":
                raise RecordError(
                    f"the forward is over and {', '.join(missing[:4])} did not run ({len(missing)} of {len(self._expected)}"
                    " hooks): is the name right? --forward-hooks passes over names that no module has"
                )
            self._fired = names
        if current.rows and names != self._fired:
            odd = sorted(names ^ (self._fired or set()))
            raise RecordError(f"{', '.join(odd[:4])} ran in some forwards and not in others: record modules that always run")

    def _discard(self) -> None:
        current, self._current = self._current, None
        if current is not None and current.sink is not None:
            current.sink.discard()


_SITES = {"boundary": "post-block", "post_norm": "post-norm"}


def _key_of(name: str) -> str:
    block, inside = _BLOCK.search(name), _INSIDE.search(name)
    if block:
        return boundary_key(int(block[1]) + 1)
    if inside:
        return module_key(name, int(inside[1]))
    last = name.rpartition(".")[2]
    return {"embed_tokens": "boundary.0", "norm": "post_norm"}.get(last, module_key(name))


def _seen(spec: HookSpec, args: tuple[Any, ...], output: Any) -> Seen:
    if spec.block is not None:
        held = held_stream(args, {})
        return Seen(output, None, held) if held is not None else Seen(*split_output(output, spec.name))
    hidden = output[0] if isinstance(output, (tuple, list)) and output else output
    if not isinstance(hidden, Tensor):
        raise RecordError(f"{spec.name} returned a {type(hidden).__name__} where a tensor was expected: record another module")
    return Seen(hidden, None)


def _refuse_graph_and_compiler() -> None:
    if is_recording_graph():
        raise RecordError(
            f"a CUDA graph is being recorded, and hooks do not run when it is replayed: start SGLang with {DISABLE}"
        )
    check_running()


def _manifest(spec: HookSpec, role: str, world: int, layout: Mapping[str, int]) -> Manifest:
    name, arch = device_names(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    args = server_args()
    model: dict[str, str | int] = {"role": role}
    path = getattr(args, "model_path" if role == "target" else "speculative_draft_model_path", None)
    if isinstance(path, str):
        model["name"] = path
    if spec.num_layers and role == "target":
        model["num_layers"] = spec.num_layers
    return Manifest(
        producer=f"pytest-specalign {version_of('pytest-specalign')} in SGLang",
        versions=loaded_versions(),
        device=name,
        arch=arch,
        model=model,
        layout={axis: size for axis, size in layout.items() if size > 1},
        world=world,
    )


def _close_at_exit(close: Any) -> None:
    """SGLang's schedulers are children of multiprocessing, which end without atexit; by SIGTERM they end without either."""
    atexit.register(close)
    multiprocessing.util.Finalize(None, close, exitpriority=100)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        # Leaving the normal way closes the dump; closing it inside the handler could wait for a lock that this thread holds.
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))

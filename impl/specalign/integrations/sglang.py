"""Recording a running SGLang server through its public option `--forward-hooks`: no source patch.

    python -m sglang.launch_server … --disable-cuda-graph --forward-hooks "$(python -c '
    from specalign.integrations.sglang import forward_hooks_json
    print(forward_hooks_json(24, "/data/dump"))')"

SGLang calls the factory `record_layers(config)` once for each spec and model runner and hangs the hook on the modules that the
spec names; the hook does not get the module's name, so each spec names one module and says so in its config.

Target and draft: SGLang builds the target's runner first, so the first call with a config belongs to the target and later ones to
drafts; what its ForwardBatch says afterwards must agree. Each goes into a dump of its own.

A pass is on disk once the model's forward is over and the writer came to it, so a server that is killed loses at most the passes
in flight. Forwards without request ids (warm-up, tuning) are not recorded. Written against SGLang 0.5.16 and 0.5.23.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from specalign.dump.keys import module_key
from specalign.integrations.sglang_place import refuse_cuda_graphs
from specalign.integrations.sglang_session import HookSpec, Session
from specalign.recorder.errors import RecordError
from specalign.recorder.record import MAX_PENDING_BYTES
from specalign.recorder.sink import Mode

FACTORY: Final = "specalign.integrations.sglang:record_layers"

Hook = Callable[[Any, Any, Any], None]


@dataclasses.dataclass(slots=True)
class _Process:
    """What the specs of one process share. SGLang gives the factory nothing but one spec's config, so this is a global."""

    calls: collections.Counter[tuple[str, str]] = dataclasses.field(default_factory=collections.Counter)
    sessions: dict[tuple[str, str], Session] = dataclasses.field(default_factory=dict)


_PROCESS = _Process()


def record_layers(config: Mapping[str, Any]) -> Hook | None:
    """The hook for one module: SGLang's `hook_factory`.

    Args:
        config: `name` (the module's dotted name), `folder`, and if need be `mode` ("full", "fingerprint", "both"), `model`
            ("target", "draft", "both"), `key` (in the dump; else made from the name), `end` (the pass is over when this module
            has run; nothing of it is recorded), `residual_fp32`, `num_layers`, `draft_folder` (else `<folder>.draft`),
            `max_pending_bytes`, `reserve_bytes`.

    Returns:
        None if this runner's model is not asked for: SGLang then says in its log that no hook is registered.

    Raises:
        RecordError: a config that says something else, or a server that runs CUDA graphs.
        DumpError: the folder cannot be used.
    """
    spec = HookSpec.parse(config)
    refuse_cuda_graphs()
    runner = _PROCESS.calls[spec.folder, spec.name]
    _PROCESS.calls[spec.folder, spec.name] += 1
    role: Literal["target", "draft"] = "draft" if runner else "target"
    if spec.model not in (role, "both"):
        return None
    if runner > 1:
        raise RecordError(
            f"{spec.name}: SGLang builds a {runner + 1}. model runner, and a dump holds one draft: record the target alone"
        )
    folder = spec.folder if role == "target" else spec.draft_folder
    session = _PROCESS.sessions.get((folder, role))
    if session is None:
        session = _PROCESS.sessions[folder, role] = Session(folder, role, spec)
    session.expect(spec)
    return functools.partial(_fire, session, spec)


def close_all() -> None:
    """Write what is in flight and end every dump of this process, as happens when it exits."""
    sessions = list(_PROCESS.sessions.values())
    _PROCESS.sessions.clear()
    _PROCESS.calls.clear()
    for session in sessions:
        session.close()


def forward_hooks_json(
    num_layers: int,
    folder: str,
    *,
    layers: Sequence[int] | None = None,
    modules: Sequence[str] = (),
    mode: Mode = "full",
    model: Literal["target", "draft", "both"] = "target",
    residual_fp32: bool = False,
    root: str = "model",
    embedding: str | None = "embed_tokens",
    norm: str | None = "norm",
    max_pending_bytes: int = MAX_PENDING_BYTES,
) -> str:
    """The value of `--forward-hooks` that records a model.

    Args:
        num_layers: of the target.
        folder: of the dump, absolute.
        layers: block numbers; all by default. Boundary 0 is recorded in any case.
        modules: names below a block (`mlp`, `self_attn.o_proj`) to record of these layers too.
        root: the dotted name of the module that holds the blocks (`language_model.model` in some multimodal models).
        embedding, norm: names below `root`; None to leave one out. A model that changes the embedding's output before block 0
            (Gemma) has another boundary 0: leave it out there.
        mode, model, residual_fp32, max_pending_bytes: see `record_layers`.
    """
    if num_layers < 1 or not folder:
        raise RecordError("forward_hooks_json needs the number of layers and a folder")
    asked = list(range(num_layers)) if layers is None else list(layers)
    wrong = [layer for layer in asked if not 0 <= layer < num_layers]
    if wrong:
        raise RecordError(f"layers {wrong} are none of 0..{num_layers - 1}")
    shared = {
        "folder": folder,
        "mode": mode,
        "model": model,
        "num_layers": num_layers,
        "max_pending_bytes": max_pending_bytes,
    }
    specs = [{"name": f"{root}.{embedding}", "key": "boundary.0"}] if embedding else []
    for layer in asked:
        specs += [{"name": f"{root}.layers.{layer}.{name}", "key": module_key(name, layer)} for name in modules]
        specs.append({"name": f"{root}.layers.{layer}", "key": f"boundary.{layer + 1}", "residual_fp32": residual_fp32})  # type: ignore[dict-item]
    if norm:
        specs.append({"name": f"{root}.{norm}", "key": "post_norm"})
    specs.append({"name": root, "end": True})  # type: ignore[dict-item]
    return json.dumps(
        [
            {
                "name": f"specalign {spec['name']}",
                "target_modules": [spec["name"]],
                "hook_factory": FACTORY,
                "config": shared | spec,
            }
            for spec in specs
        ]
    )


def _fire(session: Session, spec: HookSpec, module: Any, args: Any, output: Any) -> None:
    session.fire(spec, module, args, output)

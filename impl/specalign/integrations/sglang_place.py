"""What a running SGLang says of itself: ranks, and whether CUDA graphs are on. It is not imported, only looked at."""

from __future__ import annotations

import sys
from typing import Any

from specalign.recorder.errors import RecordError
from specalign.recorder.place import default_rank

DISABLE = "--disable-cuda-graph"
_SOURCES = (
    ("sglang.srt.runtime_context", "get_server_args"),  # 0.5.16 and later
    ("sglang.srt.server_args", "get_global_server_args"),
)


def server_args() -> Any:
    """SGLang's ServerArgs; None outside of a server."""
    for module, name in _SOURCES:
        function = getattr(sys.modules.get(module), name, None)
        if function is None:
            continue
        try:
            return function()
        except Exception:  # noqa: S112  # not set yet, or gone in this version: the next place is asked
            continue
    return None


def refuse_cuda_graphs() -> None:
    """Raises `RecordError` if this server replays CUDA graphs, past all hooks."""
    if graphs_are_off():
        return
    raise RecordError(
        f"this server runs CUDA graphs, which are replayed past every hook, so that decode steps would be missing: start it with"
        f" {DISABLE}, and without --cuda-graph-backend-decode and --cuda-graph-backend-prefill, which outweigh it"
    )


def graphs_are_off() -> bool:
    """Whether no CUDA graph is replayed here; True outside of a server.

    SGLang's own answer counts. In 0.5.23 ServerArgs holds what was asked for, and neither what one flag makes of another nor
    what the engine decides by itself.
    """
    args = server_args()
    if args is None:
        return True
    config_module = sys.modules.get("sglang.srt.model_executor.cuda_graph_config")
    fully_disabled = getattr(config_module, "cuda_graph_fully_disabled", None)
    if fully_disabled is not None:
        return bool(fully_disabled())
    if getattr(args, "disable_cuda_graph", True):
        return True
    config = getattr(args, "cuda_graph_config", None)
    return all(_backend(config, phase) == "disabled" for phase in ("decode", "prefill"))


def place() -> tuple[int, int, dict[str, tuple[int, int]]]:
    """(global rank, ranks that write, (rank, size) by axis) out of SGLang's parallel state, else as torchrun says."""
    tp, pp = _axis("tp"), _axis("pp")
    if tp is None or pp is None:
        rank, world = default_rank()
        return rank, world, {}
    axes = {"tp": tp, "pp": pp}
    dp = _axis("attn_dp") or (0, 1)
    if dp[1] > 1:  # attention is replicated over dp groups, and split over the rest of tp
        each = tp[1] // dp[1]
        axes |= {"tp": (tp[0] % each, each), "dp": dp}
    return pp[0] * tp[1] + tp[0], tp[1] * pp[1], axes


def _axis(name: str) -> tuple[int, int] | None:
    """(rank, size) of SGLang's ParallelContext (0.5.16 and later), None where it has none."""
    context = sys.modules.get("sglang.srt.runtime_context")
    try:
        parallel = context.get_parallel()  # type: ignore[union-attr]
        return int(getattr(parallel, f"{name}_rank")), int(getattr(parallel, f"{name}_size"))
    except (AttributeError, AssertionError, RuntimeError, TypeError, ValueError):
        return None


def _backend(config: Any, phase: str) -> str:
    backend = getattr(getattr(config, phase, None), "backend", "")
    return str(getattr(backend, "value", backend)).lower()

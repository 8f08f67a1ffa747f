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
    args = server_args()
    if args is None or getattr(args, "disable_cuda_graph", True):
        return
    config = getattr(args, "cuda_graph_config", None)
    backends = [_backend(config, phase) for phase in ("decode", "prefill")]
    if all(backend == "disabled" for backend in backends):
        return
    raise RecordError(
        f"this server runs CUDA graphs, which are replayed past every hook, so that decode steps would be missing: start it with"
        f" {DISABLE}"
    )


def place() -> tuple[int, int, dict[str, tuple[int, int]]]:
    """(global rank, ranks that write, (rank, size) by axis) out of SGLang's parallel state, else as torchrun says."""
    state = sys.modules.get("sglang.srt.distributed.parallel_state")
    try:
        tp = (int(state.get_tensor_model_parallel_rank()), int(state.get_tensor_model_parallel_world_size()))  # type: ignore[union-attr]
        group = state.get_pp_group()  # type: ignore[union-attr]
        pp = (int(group.rank_in_group), int(group.world_size))
    except (AttributeError, AssertionError, RuntimeError):
        rank, world = default_rank()
        return rank, world, {}
    axes = {"tp": tp, "pp": pp}
    dp = _attention_dp()
    if dp[1] > 1:  # attention is replicated over dp groups, and split over the rest of tp
        each = tp[1] // dp[1]
        axes |= {"tp": (tp[0] % each, each), "dp": dp}
    return pp[0] * tp[1] + tp[0], tp[1] * pp[1], axes


def _attention_dp() -> tuple[int, int]:
    attention = sys.modules.get("sglang.srt.layers.dp_attention")
    try:
        return int(attention.get_attention_dp_rank()), int(attention.get_attention_dp_size())  # type: ignore[union-attr]
    except (AttributeError, AssertionError, RuntimeError, TypeError):
        return 0, 1


def _backend(config: Any, phase: str) -> str:
    backend = getattr(getattr(config, phase, None), "backend", "")
    return str(getattr(backend, "value", backend)).lower()

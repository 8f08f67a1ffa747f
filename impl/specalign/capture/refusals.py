"""What hooks cannot see, refused by name: compiled code, CUDA graphs, traces, replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from specalign.capture.errors import CaptureError

_cuda_is_used: Callable[[], bool] = torch.cuda.is_initialized


def check_hookable(model: nn.Module, hooked: Sequence[nn.Module]) -> None:
    """Refuse a model whose blocks run where no hook is called.

    Raises:
        CaptureError: naming the module and what keeps its hooks from running.
    """
    names = {id(module): name for name, module in model.named_modules()}
    for module in hooked:
        if id(module) not in names:
            raise CaptureError(f"a {type(module).__name__} that was passed is no part of the {type(model).__name__}: wrong copy?")
    for prefix in sorted({ancestor for module in hooked for ancestor in _ancestors(names[id(module)])}):
        _check_not_compiled(model.get_submodule(prefix), prefix, wraps=True)
    for module in hooked:
        _check_not_compiled(module, names[id(module)], wraps=False)
        _check_no_graph(module, names[id(module)])


def check_running() -> None:
    """Refuse to capture while code is being compiled, traced, or recorded into a CUDA graph.

    Raises:
        CaptureError: naming which of them it is.
    """
    if torch.compiler.is_compiling():
        raise CaptureError(_COMPILED)
    if torch._C._get_tracing_state() is not None:
        raise CaptureError(
            "the model is being traced by torch.jit: a trace would keep the hooks' copies forever. Capture eagerly"
        )
    if is_recording_graph():
        raise CaptureError(
            "a CUDA graph is being recorded: hooks run now and never again on replay. Capture eagerly, or put capture_loop into"
            " the graph: its states are then tensors that each replay fills"
        )


def is_recording_graph() -> bool:
    """Whether what runs now is recorded into a CUDA graph."""
    return _cuda_is_used() and torch.cuda.is_current_stream_capturing()


def in_backward() -> bool:
    """Whether autograd is running backward in this thread, so that a forward seen now is activation recomputation."""
    return int(torch._C._current_graph_task_id()) != -1


def _check_not_compiled(module: nn.Module, name: str, *, wraps: bool) -> None:
    """`wraps`: the hooks lie inside `module`. Around a wrapper made by torch.compile they run, inside of it they do not."""
    where = f"{name or 'the model'} ({type(module).__name__})"
    if getattr(module, "_compiled_call_impl", None) is not None or (wraps and hasattr(module, "_orig_mod")):
        raise CaptureError(f"{where}: {_COMPILED}")
    if isinstance(module, torch.jit.ScriptModule):
        raise CaptureError(f"{where} is a TorchScript module, which runs no Python hooks: capture from the eager model")
    if isinstance(module, nn.DataParallel):
        raise CaptureError(f"{where}: DataParallel runs replicas in threads that share these hooks. Use DistributedDataParallel")


def _check_no_graph(module: nn.Module, name: str) -> None:
    if hasattr(module, "cudagraph_manager") or getattr(module, "cuda_graphs", None):
        raise CaptureError(
            f"{name} ({type(module).__name__}) runs as Megatron's CUDA graph, past its hooks: set cuda_graph_impl='none'"
            " (enable_cuda_graph=False)"
        )


def _ancestors(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts))]


_COMPILED = (
    "torch.compile runs the model without the hooks that were added to it. Capture from the eager model (model._orig_mod, or"
    " before model.compile()), or compile a function that calls capture_loop"
)

"""torch's settings that decide whether the same call gives the same bits: set, and put back exactly.

What they are set to:

- `torch.use_deterministic_algorithms(True)`: an operation without a deterministic implementation raises. Memory that was never
  written reads as NaN.
- `CUBLAS_WORKSPACE_CONFIG=:4096:8`, unless it already has one of the two values that torch takes for deterministic.
- float32 is float32: no TF32 and no bfloat16 inside cuBLAS, cuDNN and oneDNN, in the old flags and in `fp32_precision`
  (torch 2.9).
- No reduced-precision reductions in FP16 and BF16 matrix products and attention, no FP16 accumulation.
- cuDNN takes deterministic algorithms and does not choose by measuring.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

WORKSPACE: Final = "CUBLAS_WORKSPACE_CONFIG"
DETERMINISTIC_WORKSPACES: Final = (":4096:8", ":16:8")

FP32_ROOTS: Final = (("generic", "all"), ("cuda", "all"), ("mkldnn", "all"))
FP32_LEAVES: Final = tuple((backend, op) for backend in ("cuda", "mkldnn") for op in ("matmul", "conv", "rnn"))


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting: how it is read, written, and what a deterministic run needs."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    wanted: Any


@contextlib.contextmanager
def deterministic_settings(torch: Any) -> Iterator[None]:
    """Deterministic settings inside; on the way out each is what it was before, whatever happened inside.

    cuBLAS reads its variable once in a process: set here it is in time only if no earlier test multiplied on a GPU. torch then
    raises in the first product of a deterministic test, and says so; set the variable outside.
    """
    with contextlib.ExitStack() as stack:
        for setting in _settings(torch):
            before = _quietly(setting.read)
            stack.callback(_quietly, setting.write, before)
            _quietly(setting.write, setting.wanted)
        yield


def _quietly(call: Callable[..., Any], *args: Any) -> Any:
    """torch warns of its old flags where it also has new ones; both are meant here, and -Werror must not stop half way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(*args)


def _settings(torch: Any) -> list[Setting]:
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return [
        Setting(lambda: os.environ.get(WORKSPACE), _write_workspace, _wanted_workspace()),
        _inductor(),
        Setting(
            lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
            lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
            (True, False),
        ),
        _attribute(torch.utils.deterministic, "fill_uninitialized_memory", True),
        _Fp32(torch).setting(),
        _reductions(cuda.matmul, "allow_fp16_reduced_precision_reduction"),
        _reductions(cuda.matmul, "allow_bf16_reduced_precision_reduction"),
        *([_attribute(cuda.matmul, "allow_fp16_accumulation", False)] if hasattr(cuda.matmul, "allow_fp16_accumulation") else []),
        Setting(cuda.fp16_bf16_reduction_math_sdp_allowed, cuda.allow_fp16_bf16_reduction_math_sdp, False),
        _attribute(cudnn, "benchmark", False),
        _attribute(cudnn, "deterministic", True),
    ]


def _attribute(owner: Any, name: str, wanted: Any) -> Setting:
    return Setting(lambda: getattr(owner, name), lambda value: setattr(owner, name, value), wanted)


def _wanted_workspace() -> str:
    given = os.environ.get(WORKSPACE, "")
    return given if given in DETERMINISTIC_WORKSPACES else DETERMINISTIC_WORKSPACES[0]


def _write_workspace(value: str | None) -> None:
    if value is None:
        os.environ.pop(WORKSPACE, None)
    else:
        os.environ[WORKSPACE] = value


def _inductor() -> Setting:
    """The compiler's own flag, which newer `use_deterministic_algorithms` overwrite. First, so that it is put back last."""
    config = importlib.import_module("torch._inductor.config")
    if not hasattr(config, "deterministic"):
        return Setting(lambda: None, lambda value: None, None)
    return _attribute(config, "deterministic", True)


def _reductions(matmul: Any, name: str) -> Setting:
    """Whether partial sums may be rounded to the element type. Newer versions pair it with a flag for split-K, which stays."""
    if not hasattr(matmul, f"{name}_split_k"):
        return _attribute(matmul, name, False)

    def read() -> tuple[bool, bool]:
        return getattr(matmul, name), getattr(matmul, f"{name}_split_k")

    return Setting(read, lambda value: setattr(matmul, name, value), (False, read()[1]))


class _Fp32:
    """TF32 and its kin: the old flags (`allow_tf32`, `set_float32_matmul_precision`) and the new `fp32_precision`.

    The new ones form a tree, and one that is "none" reads as its parent: what is stored in it can be read only while the parent
    is "none". The old ones can be read only while they agree with the new ones, and writing them overwrites the new ones. So each
    is read with the others out of its way, and put back old first.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._get = getattr(torch._C, "_get_fp32_precision_getter", None)
        self._set: Any = getattr(torch._C, "_set_fp32_precision_setter", None)

    def setting(self) -> Setting:
        wanted_new = dict.fromkeys((*FP32_ROOTS, *FP32_LEAVES), "ieee") if self._get else {}
        return Setting(self._read, self._write, ("highest", False, wanted_new))

    def _read(self) -> tuple[str, bool, dict[tuple[str, str], str]]:
        stored: dict[tuple[str, str], str] = {}
        if self._get is None:
            return self._torch.get_float32_matmul_precision(), self._torch.backends.cudnn.allow_tf32, stored
        try:
            for node in FP32_ROOTS:
                stored[node] = self._get(*node)
                self._set(*node, "none")
            for node in FP32_LEAVES:
                stored[node] = self._get(*node)
            old = self._read_old_matmul(), self._read_old_cudnn()
        finally:
            self._write_new(stored)
        return *old, stored

    def _read_old_matmul(self) -> str:
        for backend in ("cuda", "mkldnn"):
            self._set(backend, "matmul", "ieee")
        precision: str = self._torch.get_float32_matmul_precision()
        return precision

    def _read_old_cudnn(self) -> bool:
        for op in ("conv", "rnn"):
            self._set("cuda", op, "tf32")
        try:
            return bool(self._torch.backends.cudnn.allow_tf32)
        except RuntimeError:  # it disagrees, so it is off
            return False

    def _write(self, value: tuple[str, bool, dict[tuple[str, str], str]]) -> None:
        matmul, cudnn, stored = value
        self._torch.set_float32_matmul_precision(matmul)
        self._torch.backends.cudnn.allow_tf32 = cudnn
        self._write_new(stored)

    def _write_new(self, stored: dict[tuple[str, str], str]) -> None:
        for node, precision in stored.items():
            self._set(*node, precision)

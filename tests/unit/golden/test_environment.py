"""Where a result was computed: out of what the caller says, or where the tensors are."""

from __future__ import annotations

import platform
import subprocess
import sys
import types
from typing import Any

import pytest

from specalign.golden import environment
from specalign.golden.environment import Environment, arch_of, named_environment, parse_environment
from specalign.golden.errors import GoldenError


@pytest.mark.parametrize(
    ("arch", "device"),
    [("sm90", "cuda"), ("sm100a", "cuda"), ("gfx942", "hip"), ("gfx90a", "hip"), ("cpu", "cpu"), ("any", "any"), ("mps", "mps")],
)
def test_the_family_follows_from_the_architecture(arch: str, device: str) -> None:
    made = named_environment(arch)
    assert (made.device, made.arch) == (device, arch)
    assert made.versions["machine"] == platform.machine()


@pytest.mark.parametrize("wrong", ["", "SM90", "a/b", "a.b", "x" * 25, "H100!", None])
def test_a_name_that_is_no_part_of_a_file_name_is_refused(wrong: Any) -> None:
    with pytest.raises(GoldenError, match="give a name like"):
        named_environment(wrong)


def fake_torch(hip: str | None = None) -> Any:
    """The few things that are asked of torch about GPUs."""
    cuda = types.SimpleNamespace(
        get_device_capability=lambda device: (9, 0) if device.index == 0 else (10, 0),
        get_device_properties=lambda device: types.SimpleNamespace(gcnArchName="gfx942:sramecc+:xnack-"),
    )
    return types.SimpleNamespace(Tensor=Tensor, cuda=cuda, version=types.SimpleNamespace(hip=hip))


class Tensor:
    def __init__(self, kind: str, index: int = 0) -> None:
        self.device = Device(kind, index)


class Device:
    def __init__(self, kind: str, index: int) -> None:
        self.type, self.index = kind, index


def test_tensors_on_a_gpu_tell_its_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    assert arch_of(Tensor("cuda")) == "sm90"
    assert arch_of({"h": [Tensor("cpu"), (Tensor("cuda", 1),)]}) == "sm100"
    assert arch_of([Tensor("cpu"), 3]) is None
    assert arch_of(Tensor("xpu")) == "xpu"
    with pytest.raises(GoldenError, match="are on sm100, sm90"):
        arch_of([Tensor("cuda", 0), Tensor("cuda", 1)])
    monkeypatch.setitem(sys.modules, "torch", fake_torch(hip="6.2"))
    assert arch_of(Tensor("cuda")) == "gfx942"


def test_nothing_is_asked_of_a_torch_that_nobody_imported() -> None:
    code = (
        "import sys; from specalign.golden.environment import *; assert arch_of([1]) is None;"
        "assert 'torch' not in named_environment('cpu').versions; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_versions_of_what_is_loaded_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", types.SimpleNamespace(__version__="3.5.0"))
    assert environment.versions_here()["triton"] == "3.5.0"
    then = Environment("cuda", "sm90", {"triton": "3.4.0", "gone": "1", "same": "2"})
    assert then.changes(Environment("cuda", "sm90", {"triton": "3.5.0", "same": "2"})) == (
        "gone 1 → not loaded",
        "triton 3.4.0 → 3.5.0",
    )


@pytest.mark.parametrize("wrong", [None, {}, {"device": "cpu", "arch": "cpu", "versions": {"torch": 2}}, {"device": "cpu"}])
def test_what_is_no_environment_is_refused(wrong: Any) -> None:
    with pytest.raises(GoldenError, match="here: has the environment"):
        parse_environment(wrong, "here")
    whole = Environment("cpu", "cpu", {"a": "b"})
    assert parse_environment(whole.to_json(), "here") == whole

"""Where a result was computed: what must be the same for its golden to count, and what only explains a difference."""

from __future__ import annotations

import dataclasses
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from specalign.golden.errors import GoldenError
from specalign.layer_ids.files import quoted

ANY: Final = "any"
"""Device and architecture of a golden that every machine must reproduce: the caller says so, nothing proves it."""

ARCH: Final = re.compile(r"[a-z0-9_]{1,24}")
"""What an architecture may be called: it is a part of a file's name."""

_FAMILIES: Final = (("sm", "cuda"), ("gfx", "hip"))
_PACKAGES: Final = ("torch", "triton", "numpy", "transformers", "sglang", "vllm", "megatron.core", "deep_gemm", "flash_attn")


@dataclasses.dataclass(frozen=True, slots=True)
class Environment:
    """Where something was computed.

    Attributes:
        device: the family: "cpu", "cuda", "hip", torch's own name of another, or `ANY`.
        arch: "cpu", "sm90", "gfx942", the family's name of another, or `ANY`. It must match.
        versions: of the packages that were loaded, of Python, and the machine. They only explain.
    """

    device: str
    arch: str
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The environment in a golden's document."""
        return {"device": self.device, "arch": self.arch, "versions": dict(self.versions)}

    def changes(self, now: Environment) -> tuple[str, ...]:
        """What is another version now: `torch 2.9.0 → 2.10.0`."""
        names = sorted(self.versions.keys() | now.versions.keys())
        pairs = [(name, self.versions.get(name, "not loaded"), now.versions.get(name, "not loaded")) for name in names]
        return tuple(f"{name} {then} → {today}" for name, then, today in pairs if then != today)


def parse_environment(document: object, where: str) -> Environment:
    """The environment out of a golden's document.

    Raises:
        GoldenError: it is none.
    """
    table: Mapping[str, Any] = document if isinstance(document, dict) else {}
    device, arch, versions = table.get("device"), table.get("arch"), table.get("versions")
    if (
        set(table) != {"device", "arch", "versions"}
        or not isinstance(device, str)
        or not isinstance(arch, str)
        or not isinstance(versions, dict)
        or not all(isinstance(value, str) for value in versions.values())
    ):
        raise GoldenError(f"{where}: has the environment {quoted(document)}, which is none; write the golden again")
    return Environment(device, arch, versions)


def named_environment(arch: str) -> Environment:
    """The environment of an architecture that the caller names.

    Raises:
        GoldenError: a name that no architecture can have.
    """
    if not isinstance(arch, str) or not ARCH.fullmatch(arch):
        raise GoldenError(f'arch is {arch!r}: give a name like "sm90", "gfx942" or "cpu", or "any" if every machine must agree')
    device = next((family for prefix, family in _FAMILIES if re.fullmatch(prefix + r"\d+\w*", arch)), arch)
    return Environment(device, arch, versions_here())


def arch_of(value: Any) -> str | None:
    """The architecture that the tensors of a tree are on: that of the GPU if any is on one; None for none that is.

    Raises:
        GoldenError: tensors on GPUs of several architectures.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    found = {_arch_of_device(torch, device) for device in set(_devices(torch, value, ())) if device.type != "cpu"}
    if len(found) > 1:
        raise GoldenError(f"tensors of one result are on {', '.join(sorted(found))}: say which with arch=, or check them apart")
    return found.pop() if found else None


def versions_here() -> dict[str, str]:
    """Versions of what this process has loaded, of Python, and the machine."""
    loaded = {name: getattr(sys.modules.get(name), "__version__", None) for name in _PACKAGES}
    here = {name: str(version) for name, version in loaded.items() if version is not None}
    return {**here, "python": platform.python_version(), "machine": platform.machine()}


def _arch_of_device(torch: Any, device: Any) -> str:
    if device.type != "cuda":
        return str(device.type)
    if torch.version.hip:
        return str(torch.cuda.get_device_properties(device).gcnArchName).partition(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm{major}{minor}"


def _devices(torch: Any, value: Any, above: tuple[int, ...]) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value.device
    elif isinstance(value, (Mapping, list, tuple)) and id(value) not in above:
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _devices(torch, item, (*above, id(value)))

"""Where a recording is made: versions, device, rank. What goes into the manifest of a dump."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Mapping

import torch
from torch import nn

from specalign.dump.manifest import Manifest

PACKAGES = {
    "torch": "torch",
    "triton": "triton",
    "transformers": "transformers",
    "sglang": "sglang",
    "sgl_kernel": "sgl-kernel",
    "flashinfer": "flashinfer-python",
    "deep_gemm": "sgl-deep-gemm",
    "megatron.core": "megatron-core",
    "transformer_engine": "transformer-engine",
}
"""Modules whose code may decide bits, and the distributions that hold them."""


def describe(
    model: nn.Module, *, num_layers: int, layout: Mapping[str, int], world: int, more: Mapping[str, str | int]
) -> Manifest:
    """The manifest for a recording of this model. `more` is added to what is found about the model."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    name, arch = device_names(device)
    return Manifest(
        producer=f"pytest-specalign {version_of('pytest-specalign')}",
        versions=loaded_versions(),
        device=name,
        arch=arch,
        model={**model_facts(model), "num_layers": num_layers, **more},
        layout={axis: size for axis, size in layout.items() if size > 1},
        world=world,
    )


def loaded_versions() -> dict[str, str]:
    """Versions of those of `PACKAGES` that are loaded in this process."""
    return {PACKAGES[module]: version_of(PACKAGES[module]) for module in PACKAGES if module in sys.modules}


def version_of(distribution: str) -> str:
    """Its version, "unknown" where it is not installed as a distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def device_names(device: torch.device) -> tuple[str, str]:
    """("NVIDIA H200", "sm90"), ("AMD Instinct …", "gfx942"), ("cpu", "cpu")."""
    if device.type != "cuda":
        return device.type, device.type
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return properties.name, str(getattr(properties, "gcnArchName", "")).partition(":")[0]
    return properties.name, f"sm{properties.major}{properties.minor}"


def model_facts(model: nn.Module) -> dict[str, str | int]:
    """What a model says of itself: transformers and Megatron keep a config, alone or in a wrapper."""
    facts: dict[str, str | int] = {}
    inner = model
    while not hasattr(inner, "config") and isinstance(wrapped := getattr(inner, "module", None), nn.Module):
        inner = wrapped
    facts["class"] = type(inner).__name__
    config = getattr(inner, "config", None)
    for name in ("model_type", "hidden_size", "vocab_size"):
        value = getattr(config, name, None)
        if isinstance(value, (int, str)) and not isinstance(value, bool):
            facts[name] = value
    return facts


def default_rank() -> tuple[int, int]:
    """(global rank, world size): of torch.distributed where it runs, else of torchrun's variables."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, world = (os.environ.get(name, default) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    return (int(rank), int(world)) if rank.isdecimal() and world.isdecimal() else (0, 1)

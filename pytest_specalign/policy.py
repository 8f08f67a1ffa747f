"""Whether GPU tests must run: what `--specalign-gpu-policy` chose, and why."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any, Final, Literal

import pytest

from pytest_specalign.leases import get_pool
from pytest_specalign.options import get_option, settings
from pytest_specalign.state import POLICY

NODES: Final = ("nvidia[0-9]*", "dxg", "nvmap", "kfd")
"""Device files of which a machine with a GPU has one: NVIDIA's driver, WSL's, Tegra's, and AMD's."""


@dataclasses.dataclass(frozen=True)
class Policy:
    """What was chosen.

    Attributes:
        chosen: `require`: a GPU test that did not run fails the run, unless it is waived. `allow`: it is counted.
        is_asked: somebody said so. `auto` requires that the GPU tests of the run really run; it does not require that there are
            any, since on a machine with a GPU other tests are run too.
        why: who said so, or what was found.
    """

    chosen: Literal["allow", "require"]
    is_asked: bool
    why: str

    @property
    def requires(self) -> bool:
        return self.chosen == "require"

    def format(self) -> str:
        return f"{self.chosen} ({self.why})"


def get_policy(config: pytest.Config) -> Policy:
    """The policy of this run; GPUs are looked for the first time only, and only for `auto`."""
    if POLICY not in config.stash:
        given = settings(config).get("gpu_policy")
        word = get_option(config, "gpu_policy")
        if given is not None and word is not None and word != "auto":
            config.stash[POLICY] = Policy(word, True, given.source)
        else:
            config.stash[POLICY] = _look(config)
    return config.stash[POLICY]


def shows_a_gpu(folder: Path = Path("/dev")) -> bool:
    """Whether the machine may have a GPU, by the names of its device files alone: quick, and never wrong when it says no."""
    return any(next(folder.glob(pattern), None) is not None for pattern in NODES)


def _look(config: pytest.Config) -> Policy:
    told = config.hook.pytest_specalign_discover_devices.get_hookimpls()
    if not told and not shows_a_gpu():
        return Policy("allow", False, "auto: this machine has no GPU")
    leases: Any = importlib.import_module("specalign.leases")
    try:
        found = get_pool(config).inventory
    except leases.LeaseError as error:
        return Policy("require", False, f"auto: the GPUs cannot be told apart: {error}")
    if not found.devices:
        said = "; ".join(found.notes)
        return Policy("allow", False, "auto: no GPU is visible" + (f": {said}" if said else ""))
    first, count = found.devices[0], len(found.devices)
    shown = f"{count} GPU{'s' if count > 1 else ''} visible, by {found.source}: {first.name}"
    return Policy("require", False, f"auto: {shown}" + (", …" if count > 1 else ""))

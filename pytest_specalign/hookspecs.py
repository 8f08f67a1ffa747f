"""Hooks that a conftest or another plugin may implement.

A hook in the root conftest, in an initial conftest or in a plugin is seen. One in a conftest further down is not: pytest reads
such a file during collection, after the header has been printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from specalign.golden.check import GoldenReport
    from specalign.golden.stores import Store
    from specalign.leases import Device


def pytest_specalign_environment(config: pytest.Config, environment: dict[str, str]) -> None:
    """Add name → value lines to the header and to reports.

    Called once, on the controller, the first time a header or a report needs it; never while the plugin is inert. All
    implementations are called with the same dict, in pytest's usual order (last registered first); a later one sees, and may
    replace, what an earlier one wrote.

    Args:
        config: the run's config.
        environment: starts empty. Names and values must be strings; anything else stops the run and is named.

    Example, in the root conftest::

        def pytest_specalign_environment(config, environment):
            environment["cluster"] = os.environ.get("CLUSTER", "none")
    """


@pytest.hookspec(firstresult=True)
def pytest_specalign_discover_devices(config: pytest.Config) -> Sequence[Device] | None:
    """Tell which GPUs the machine has, in the place of NVML, nvidia-smi and torch.

    Called in each process that runs tests when it first asks for a lease, and again while a request waits for free memory. The
    first implementation that returns something other than None is believed; CUDA_VISIBLE_DEVICES still applies to that. For
    `--specalign-session-gpus` it is called before the conftests are read, so there it must stand in a plugin (`-p`).

    Args:
        config: the run's config.

    Returns:
        `specalign.leases.Device` objects in PCI order, possibly none; or None to let the next one tell.

    Example, for tests of a suite that has no GPU::

        def pytest_specalign_discover_devices(config):
            return [Device("GPU-00000000", 0, "made up", (9, 0), memory_total=2**37, memory_free=2**37)]
    """


@pytest.hookspec(firstresult=True)
def pytest_specalign_golden_store(config: pytest.Config) -> Store | None:
    """Tell where goldens are kept that are too large for the repository.

    Called in each process that runs tests when the first such golden is checked or written. The first implementation that
    returns something other than None is believed.

    Args:
        config: the run's config.

    Returns:
        An object with `fetch(sha256, size)` and `keep(path, sha256)`, see `specalign.golden.stores.Store`; or None.

    Example, in the root conftest::

        def pytest_specalign_golden_store(config):
            return FsspecStore("s3://bucket/goldens")
    """


def pytest_specalign_divergence(config: pytest.Config, report: GoldenReport) -> None:
    """Called for each golden that a result does not agree with, or that is missing, before the test fails.

    Called in the process that runs the test, under xdist in a worker. For a golden that is a dump, `report.compare` is the
    comparison; `report.artifacts` is the folder with both sides, where `--specalign-artifacts` is set.

    Args:
        config: the run's config.
        report: what was found.

    Example, in the root conftest::

        def pytest_specalign_divergence(config, report):
            print(report.key.text, report.verdict)
    """

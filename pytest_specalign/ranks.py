"""The fixture `rank_group`: a test's function on the ranks of a torch.distributed group.

The library's room `specalign.ranks` does the work; it is imported when the fixture is used. Here it is told what pytest
knows: the timeout, the test's lease and seed, and which modules pytest loaded with its own assert.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_specalign.options import get_option
from pytest_specalign.seeds import import_torch, node_seed, save_random_state, seed_all
from pytest_specalign.state import MEETING, RANDOM_STATE
from pytest_specalign.torch_settings import deterministic_settings

if TYPE_CHECKING:
    from specalign.leases import Lease
    from specalign.ranks import Launch, Meeting, RankGroup

_LEASES = ("gpu_lease", "module_gpu_lease", "session_gpu_lease")
_PARTING = 30.0
_LOADER = "pytest_specalign.rank_asserts:AssertLoader"


@pytest.fixture
def rank_group(request: pytest.FixtureRequest) -> Callable[..., RankGroup]:
    """`rank_group(world_size, backend="gloo", timeout=None).run(function, *args, **kwargs)`: each rank's result, by rank.

    Starts `world_size` processes that join one torch.distributed group, and ends them, whatever happens. A rank that raises, ends
    or hangs fails the test, with every failing rank's traceback. With "nccl" the test must hold a lease of as many GPUs
    (`@pytest.mark.gpu(count=...)`), and rank r uses the r-th of them. Under an outer torchrun the function runs in its processes.

    The seconds of `timeout` are `--specalign-rank-timeout` unless given. With the fixture `deterministic`, each rank has the
    test's settings and starts with the test's seed.
    """
    if importlib.util.find_spec("torch") is None:
        pytest.fail("rank_group needs torch, which is not installed: install pytest-specalign[torch]", pytrace=False)
    if request.node.get_closest_marker("gpu") is not None:  # also where the plugin was not asked for
        request.getfixturevalue("gpu_lease")
    return functools.partial(_make, request)


def _make(request: pytest.FixtureRequest, world_size: int, backend: str = "gloo", *, timeout: float | None = None) -> RankGroup:
    __tracebackhide__ = True
    ranks = importlib.import_module("specalign.ranks")
    config, item = request.config, request.node
    launch = ranks.Launch.read(os.environ)
    if launch is not None and "PYTEST_XDIST_WORKER" in os.environ:
        raise ranks.RankGroupError(
            f"this worker of xdist runs under an outer launch of {launch.world_size} ranks, each of which would have workers of"
            " its own: run torchrun without -n, or unset RANK to have ranks started"
        )
    lease = _lease(request) if ranks.BACKENDS.get(backend) else None
    if timeout is None:
        timeout = get_option(config, "rank_timeout") or ranks.DEFAULT_TIMEOUT
    made: RankGroup = ranks.RankGroup(
        world_size,
        backend,
        devices=[device.uuid for device in lease.devices] if lease is not None else (),
        changes=lease.changes if lease is not None else {},
        timeout=timeout,
        launch=launch,
        meeting=_meeting(config, launch),
        around=functools.partial(_seeded, node_seed(item)) if RANDOM_STATE in item.stash else None,
        loaders=_rewritten,
        place=item.nodeid,
    )
    return made


def _meeting(config: pytest.Config, launch: Launch | None) -> Meeting:
    """The one of this process. Under an outer launch no process ends before all have printed their reports."""
    if MEETING not in config.stash:
        meeting: Meeting = importlib.import_module("specalign.ranks").Meeting()
        config.stash[MEETING] = meeting
        if launch is not None:
            config.add_cleanup(lambda: meeting.part(launch, _PARTING))
    return config.stash[MEETING]


def _lease(request: pytest.FixtureRequest) -> Lease:
    """The widest lease that the test asked for.

    Raises:
        RankGroupError: it asked for none.
    """
    asked = [name for name in _LEASES if name in request.node.fixturenames]
    if request.node.get_closest_marker("gpu") is not None and "gpu_lease" not in asked:
        asked.append("gpu_lease")
    if not asked:
        error: Exception = importlib.import_module("specalign.ranks").RankGroupError(
            f"{request.node.nodeid}: ranks on GPUs need a lease: mark the test @pytest.mark.gpu(count=N), with as many as ranks"
        )
        raise error
    leases: list[Lease] = [request.getfixturevalue(name) for name in asked]
    return max(leases, key=lambda lease: len(lease.devices))


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """What `deterministic` does, around the function in each rank: the same seed in all of them."""
    torch = import_torch()
    restore = save_random_state(torch)
    with contextlib.nullcontext() if torch is None else deterministic_settings(torch):
        seed_all(seed, torch)
        try:
            yield
        finally:
            restore()


def _rewritten() -> dict[str, str]:
    """Modules whose asserts pytest rewrote, so that those of the ranks can tell their values too."""
    return {name: _LOADER for name, module in list(sys.modules.items()) if _loader_name(module) == "AssertionRewritingHook"}


def _loader_name(module: Any) -> str:
    return type(getattr(getattr(module, "__spec__", None), "loader", None)).__name__

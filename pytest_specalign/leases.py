"""GPU leases for tests: the fixtures, the lease of a whole session, and the marks that ask for one.

The library's room `specalign.leases` does the work; it is imported when the first lease is asked for, not when the plugin starts.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

import pytest

from pytest_specalign.gpu_account import Account
from pytest_specalign.marks import GpuMark, read_mark
from pytest_specalign.options import early_option, get_option, is_active
from pytest_specalign.state import BROKE, GPU_TEST, MEMORY, NO_SESSION_LEASE, POOL, SESSION_LEASE

if TYPE_CHECKING:
    import torch

    from specalign.leases import Inventory, Lease, Pool, Request

WIDER = frozenset({"module_gpu_lease", "session_gpu_lease"})
_NO_RUN = ("collectonly", "help", "version", "showfixtures", "show_fixtures_per_test", "markers")


@pytest.fixture(scope="session")
def session_gpu_lease(pytestconfig: pytest.Config) -> Iterator[Lease]:
    """GPUs for the whole run of this process: as many as `--specalign-session-gpus` says, or one."""
    yield from _leased(pytestconfig, GpuMark(get_option(pytestconfig, "session_gpus") or 1), "the session")


@pytest.fixture(scope="module")
def module_gpu_lease(request: pytest.FixtureRequest) -> Iterator[Lease]:
    """GPUs for all tests of the module: those of its `pytestmark = pytest.mark.gpu(...)`, or one."""
    yield from _leased(request.config, _mark(request.node), request.node.nodeid)


@pytest.fixture
def gpu_lease(request: pytest.FixtureRequest) -> Iterator[Lease]:
    """GPUs for one test: those of its mark `gpu`, or one. `devices`, `env` for subprocesses, `torch_device`.

    Served from a module's or a session's lease where this process holds one. Waits for other processes, up to
    `--specalign-lease-timeout`. Skips with the reason where the machine has no such GPUs. After the test no memory that it
    allocated with torch and no process that it started may be left on them.
    """
    request.node.stash[GPU_TEST] = True
    yield from _leased(request.config, _mark(request.node), request.node.nodeid, request.node)


@pytest.fixture
def specalign_device(gpu_lease: Lease) -> torch.device:
    """The leased GPU as torch counts it, found by UUID."""
    leases = importlib.import_module("specalign.leases")
    try:
        return gpu_lease.torch_device
    except ModuleNotFoundError:
        pytest.fail("specalign_device needs torch, which is not installed: install pytest-specalign[torch]", pytrace=False)
    except leases.LeaseError as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(name="device")
def device_alias(specalign_device: torch.device) -> torch.device:
    """A short name for `specalign_device`; a conftest's own `device` takes its place."""
    return specalign_device


def add_leases(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let every test that needs one have a `gpu_lease`, also where it only carries the mark, or uses a wider lease: it is what
    looks after the test at what is left on the GPU. Marks alone count only where the plugin was asked for."""
    active = is_active(config)
    for item in items:
        if isinstance(item, pytest.Function) and "gpu_lease" not in item.fixturenames:
            marked = active and item.get_closest_marker("gpu") is not None
            if marked or WIDER & set(item.fixturenames):
                item.fixturenames.insert(_first_of_the_function(item), "gpu_lease")


def take_session_lease(config: pytest.Config) -> None:
    """Take what `--specalign-session-gpus` asks for, before anything can import torch, and let this process see nothing else.

    Raises:
        pytest.UsageError: CUDA is initialised already, so that its GPUs are fixed; or the lease cannot be had.
    """
    count = early_option(config, "session_gpus")
    if not isinstance(count, int) or SESSION_LEASE in config.stash or NO_SESSION_LEASE in config.stash or not _runs_tests(config):
        return
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise pytest.UsageError(
            "--specalign-session-gpus: CUDA is initialised in this process already, and keeps the GPUs that it saw then; find"
            " what imports torch and uses a GPU before pytest reads its conftests (a plugin named by -p, or sitecustomize)"
        )
    leases = importlib.import_module("specalign.leases")
    try:
        lease: Lease = get_pool(config).lease(leases.Request(count), _timeout(config))
    except leases.LeaseError as error:
        problem = f"--specalign-session-gpus={count}: {error}"
        if "PYTEST_XDIST_WORKER" not in os.environ:
            raise pytest.UsageError(problem) from error
        config.stash[NO_SESSION_LEASE] = problem  # to end a worker here would have xdist start another one, and another
        return
    config.stash[SESSION_LEASE] = lease
    before = {name: os.environ.get(name) for name in lease.changes}
    config.add_cleanup(lease.release)
    config.add_cleanup(lambda: _put_back(os.environ, before))
    os.environ.update(lease.changes)


def refuse_without_session_lease(item: pytest.Item) -> None:
    """Fail a test of a worker that did not get its session lease."""
    if NO_SESSION_LEASE in item.config.stash:
        pytest.fail(item.config.stash[NO_SESSION_LEASE], pytrace=False)


def get_pool(config: pytest.Config) -> Pool:
    """The one way of this process to its leases; made the first time."""
    if POOL not in config.stash:
        leases = importlib.import_module("specalign.leases")
        environ = dict(os.environ)
        directory = early_option(config, "lock_dir") or leases.DEFAULT_FOLDER
        pattern = early_option(config, "lock_pattern") or "{uuid}.lock"
        try:
            folder = leases.LockFolder(directory, pattern)
        except leases.LeaseError as error:
            raise pytest.UsageError(f"--specalign-lock-pattern: {error}") from error
        config.stash[POOL] = leases.Pool(lambda: _inventory(config, environ), folder, environ, _own_workers)
    return config.stash[POOL]


def count_workers(config: pytest.Config) -> int | None:
    """What `-n auto` means under `--specalign-workers=gpus`: as many as this run may use GPUs, and one without any."""
    if get_option(config, "workers") is None:
        return None
    leases = importlib.import_module("specalign.leases")
    try:
        return max(1, len(get_pool(config).inventory.devices))
    except leases.LeaseError as error:
        raise pytest.UsageError(f"--specalign-workers=gpus: {error}") from error


def _leased(config: pytest.Config, mark: GpuMark, who: str, item: pytest.Item | None = None) -> Iterator[Lease]:
    leases = importlib.import_module("specalign.leases")
    pool = get_pool(config)
    try:
        lease = _take(pool, _request(leases, mark), _timeout(config))
    except leases.NoDeviceError as error:
        pytest.skip(f"{who}: {error}")
    except leases.LeaseError as error:
        pytest.fail(f"{who}: {error}", pytrace=False)
    account = Account.open(pool, lease, config.stash.get(MEMORY, {}))
    config.stash[MEMORY] = account.memory
    yield lease
    if isinstance(item, pytest.Function) and item.funcargs:  # None where the run was interrupted
        item.funcargs.clear()  # pytest keeps what the test's own fixtures returned until the very end; they are over
    try:
        left = account.close(memory=item is None or BROKE not in item.stash)
    finally:
        lease.release()
    if left:
        pytest.fail("\n".join([f"{who} leaves something on its GPU:", *left]), pytrace=False)


def _take(pool: Pool, request: Request, timeout: float) -> Lease:
    """Several GPUs under an outer torchrun are one lease of all its processes here; else this process takes them for itself."""
    launch = importlib.import_module("specalign.ranks.launch").Launch
    try:
        beside = launch.local_size(os.environ)
    except ValueError as error:
        raise importlib.import_module("specalign.leases").LeaseError(str(error)) from error
    if request.count == 1 or beside == 1:
        return pool.lease(request, timeout)
    return pool.share(dataclasses.replace(request, count=min(request.count, beside)))


def _request(leases: Any, mark: GpuMark) -> Request:
    memory = None if mark.memory is None else leases.read_memory(mark.memory)
    made: Request = leases.Request(mark.count, mark.capability, memory)
    return made


def _mark(node: pytest.Item | pytest.Collector) -> GpuMark:
    found = node.get_closest_marker("gpu")
    if found is None:
        return GpuMark()
    try:
        mark = read_mark(found)
    except ValueError as error:  # the plugin was not asked for, so nobody looked at collection
        pytest.fail(f"{node.nodeid}: bad mark gpu: {error}", pytrace=False)
    return mark if isinstance(mark, GpuMark) else GpuMark()


def _timeout(config: pytest.Config) -> float:
    given = early_option(config, "lease_timeout")
    default: float = importlib.import_module("specalign.leases").DEFAULT_TIMEOUT
    return given if isinstance(given, float) else default


def _inventory(config: pytest.Config, environ: dict[str, str]) -> Inventory:
    leases = importlib.import_module("specalign.leases")
    told = config.hook.pytest_specalign_discover_devices(config=config)
    if told is None:
        found = leases.machine_devices()
    else:
        found = leases.Inventory(tuple(told), "hook")
        strange = [value for value in found.devices if not isinstance(value, leases.Device)]
        if strange:
            raise pytest.UsageError(f"pytest_specalign_discover_devices: {strange[0]!r}: return specalign.leases.Device objects")
    shown: Inventory = leases.visible_devices(found, environ)
    return shown


def _own_workers() -> frozenset[int]:
    """This process, and the workers beside it."""
    beside: frozenset[int] = frozenset()
    if "PYTEST_XDIST_WORKER" in os.environ:
        beside = importlib.import_module("specalign.leases.processes").children(os.getppid())
    return beside | {os.getpid()}


def _runs_tests(config: pytest.Config) -> bool:
    """Whether tests run in this process: not where xdist's controller hands them out, and not for `--collect-only`."""
    known = config.known_args_namespace
    if any(getattr(known, name, False) for name in _NO_RUN):
        return False
    if "PYTEST_XDIST_WORKER" in os.environ:
        return True
    hands_out = getattr(known, "numprocesses", None) or (getattr(known, "dist", "no") != "no" and getattr(known, "tx", None))
    return not hands_out


def _first_of_the_function(item: pytest.Function) -> int:
    """Where the fixtures of the test itself begin: wider ones come before, and what they hold is none of the test's doing."""
    known = item._fixtureinfo.name2fixturedefs
    for place, name in enumerate(item.fixturenames):
        if name in known and known[name][-1].scope == "function":
            return place
    return len(item.fixturenames)


def _put_back(environ: MutableMapping[str, str], before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value

"""The fixtures and marks that lease GPUs, on devices that a conftest makes up."""

from __future__ import annotations

from pathlib import Path

import pytest

from specalign.leases import Device, Lease, LockFolder, Pool, Request
from specalign.leases.devices import Inventory
from tests.plugin.support import FAKE_TORCH, WITHOUT_XDIST, WORKERS, Gpus, Run


def _devices(count: int) -> tuple[Device, ...]:
    return tuple(Device(f"GPU-{i}", i, "made up", (9, 0), 2**37, 2**37) for i in range(count))


def _elsewhere(folder: Path, count: int, wanted: int = 1) -> Lease:
    """A lease of another process; that it is this one makes no difference to the locks."""
    return Pool(lambda: Inventory(_devices(count), "hook"), LockFolder(folder), {}).lease(Request(wanted))


@pytest.mark.parametrize("workers", WORKERS)
def test_a_test_gets_what_its_mark_asks_for(run: Run, pytester: pytest.Pytester, gpus: Gpus, workers: tuple[str, ...]) -> None:
    gpus(2)
    pytester.makepyfile(
        """
        import pytest

        def test_one(gpu_lease):
            assert len(gpu_lease.devices) == 1
            assert gpu_lease.env["CUDA_VISIBLE_DEVICES"] == gpu_lease.devices[0].uuid

        @pytest.mark.gpu(count=2, capability=(9, 0), memory="100GiB")
        def test_two(gpu_lease):
            assert [device.uuid for device in gpu_lease.devices] == ["GPU-0", "GPU-1"]

        @pytest.mark.gpu(capability=(10, 0))
        def test_none(gpu_lease):
            raise AssertionError

        @pytest.mark.gpu(3)
        def test_too_many(gpu_lease):
            raise AssertionError
        """
    )
    result = run("-rs", *workers)
    result.assert_outcomes(passed=2, skipped=2)
    result.stdout.fnmatch_lines_random(
        [
            "SKIPPED*::test_none: asked for 1 GPU of compute capability 10.0 or more: 0 of 2 GPUs here would do; *",
            "SKIPPED*::test_too_many: asked for 3 GPUs: 2 of 2 GPUs here would do",
        ]
    )


def test_no_gpu_is_a_skip_that_says_what_was_looked_at(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(0)
    pytester.makepyfile("def test_one(specalign_device): pass\n")
    result = run("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*: asked for 1 GPU: no GPU was found"])


MARKED = """
import os
import pytest
from specalign.leases.locks import KernelLock, holder_of

def is_leased(index):
    return holder_of(KernelLock(FOLDER / f"GPU-{index}.lock")) is not None

@pytest.mark.gpu
def test_marked():
    assert is_leased(0) == EXPECTED

class TestOld(__import__("unittest").TestCase):
    @pytest.mark.gpu
    def test_marked(self):
        assert is_leased(0) == EXPECTED
"""


@pytest.mark.parametrize("asked", [False, True], ids=["inert", "active"])
def test_the_mark_alone_leases_where_the_plugin_was_asked_for(
    run: Run, pytester: pytest.Pytester, gpus: Gpus, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    folder = gpus(1)
    if not asked:
        folder.mkdir()
        monkeypatch.delenv("SPECALIGN_LOCK_DIR")  # which wakes it
    text = MARKED.replace("FOLDER", f"__import__('pathlib').Path({str(folder)!r})").replace("EXPECTED", str(asked))
    pytester.makepyfile(text)
    run(*WITHOUT_XDIST).assert_outcomes(passed=2)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_module_lease_serves_its_tests(run: Run, pytester: pytest.Pytester, gpus: Gpus, workers: tuple[str, ...]) -> None:
    gpus(2)
    pytester.makepyfile(
        """
        import pytest
        pytestmark = pytest.mark.gpu(count=2)

        @pytest.fixture(scope="module")
        def server(module_gpu_lease):
            return module_gpu_lease.env["CUDA_VISIBLE_DEVICES"]

        def test_all(server):
            assert server == "GPU-0,GPU-1"

        @pytest.mark.gpu(count=1)
        def test_one(server, gpu_lease):
            assert gpu_lease.devices[0].uuid == "GPU-0"

        @pytest.mark.gpu(count=1)
        def test_mark_only(server):
            pass
        """
    )
    run("--dist=loadfile", *workers) if workers == ("-n2",) else None
    run(*WITHOUT_XDIST).assert_outcomes(passed=3)


def test_a_test_that_wants_more_than_its_module_holds_fails_at_once(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(2)
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.gpu(count=2)
        def test_two(module_gpu_lease):
            pass
        """
    )
    result = run(*WITHOUT_XDIST)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*::test_two: asked for 2 GPUs while this process holds a lease of 1 (GPU 0 made up (GPU-0))*"])
    result.stdout.no_fnmatch_line("*Traceback*")


@pytest.mark.parametrize("workers", WORKERS)
def test_gpus_that_others_hold_are_an_error_that_names_them(
    run: Run, pytester: pytest.Pytester, gpus: Gpus, workers: tuple[str, ...]
) -> None:
    lease = _elsewhere(gpus(1), 1)
    pytester.makepyfile("def test_one(gpu_lease): pass\n")
    result = run("--specalign-lease-timeout=0", *workers)
    lease.release()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*::test_one: asked for 1 GPU and had 0 of 1 after 0 s", "  GPU 0 made up (GPU-0): leased by pid *"]
    )
    run("--specalign-lease-timeout=0", *workers).assert_outcomes(passed=1)


def test_two_workers_never_share_a_gpu(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    gpus(2)
    pytester.makepyfile(
        """
        import os
        import pathlib
        import pytest

        @pytest.mark.parametrize("number", range(20))
        def test_alone(gpu_lease, number, pytestconfig):
            witness = pytestconfig.rootpath / gpu_lease.devices[0].uuid
            fd = os.open(witness, os.O_CREAT | os.O_EXCL)
            os.close(fd)
            for _ in range(50):
                assert witness.exists()
            witness.unlink()
        """
    )
    run("-n3").assert_outcomes(passed=20)


def test_without_torch_the_device_says_which_extra(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1)
    run.hide("torch")
    pytester.makepyfile("def test_it(specalign_device): pass\n")
    result = run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["specalign_device needs torch, which is not installed: install pytest-specalign*"])


def test_the_device_is_found_by_uuid_and_its_alias_may_be_overridden(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    torch = FAKE_TORCH.replace(
        "device_count=lambda: 1", "device_count=lambda: 2, get_device_properties=lambda n: types.SimpleNamespace(uuid=str(1 - n))"
    )
    gpus(2, torch.replace("state=state)", "state=state, device=lambda kind, n: f'{kind}:{n}')"))
    pytester.makepyfile(
        test_alias="def test_it(specalign_device, device, gpu_lease):\n    assert specalign_device == device == 'cuda:1'\n",
        test_own="import pytest\n@pytest.fixture\ndef device():\n    return 'mine'\ndef test_it(device):\n    assert device == 'mine'\n",
    )
    run().assert_outcomes(passed=2)


def test_a_hook_that_returns_something_else_is_named(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    gpus(1)
    pytester.makeconftest("def pytest_specalign_discover_devices():\n    return ['GPU-0']\n")
    pytester.makepyfile("def test_it(gpu_lease): pass\n")
    result = run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [
        "ERROR: pytest_specalign_discover_devices: 'GPU-0': return specalign.leases.Device objects"
    ]


def test_a_bad_mark_fails_where_the_plugin_is_inert(
    run: Run, pytester: pytest.Pytester, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(1)
    monkeypatch.delenv("SPECALIGN_LOCK_DIR")
    pytester.makepyfile("import pytest\n@pytest.mark.gpu(count=0)\ndef test_it(gpu_lease): pass\n")
    result = run(*WITHOUT_XDIST)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*::test_it: bad mark gpu: count is 0: give a whole number of at least 1*"])


def test_the_lock_pattern_of_others(run: Run, pytester: pytest.Pytester, gpus: Gpus) -> None:
    folder = gpus(1)
    pytester.makepyfile("def test_it(gpu_lease): pass\n")
    run("--specalign-lock-pattern=gpu{index}.lock").assert_outcomes(passed=1)
    assert sorted(path.name for path in folder.iterdir()) == ["gpu0.lock", "turn.lock"]

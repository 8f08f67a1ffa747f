"""GPU tests fail, and do not skip, where there is no GPU: `make test` never collects this folder, `make gpu-test` means it."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each test here is a GPU test, for the leases, for the policy that requires them, and for who counts them."""
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("gpu") is None:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True, scope="session")
def gpu() -> None:
    """Every test here needs one."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.fail("no GPU is visible to torch: these tests were asked for by name and cannot run", pytrace=False)

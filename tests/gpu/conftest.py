"""GPU tests fail, and do not skip, where there is no GPU: `make test` never collects this folder, `make gpu-test` means it."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def gpu() -> None:
    """Every test here needs one."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.fail("no GPU is visible to torch: these tests were asked for by name and cannot run", pytrace=False)

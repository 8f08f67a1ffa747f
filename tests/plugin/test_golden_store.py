"""Goldens in an external store: the repository pins them, a download that fails is a failure, and nothing skips."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.plugin.support import Run

pytest.importorskip("fsspec")

TEST = """
import numpy


def test_f(golden):
    golden.check("h", tensors=numpy.full((64, 64), {}), keep="external")
"""

CONFTEST = """
from specalign.golden.stores import FsspecStore


def pytest_specalign_golden_store(config):
    return FsspecStore(f"file://{config.rootpath}/remote", cache=config.rootpath / "cache")
"""


@pytest.fixture
def suite(run: Run, pytester: pytest.Pytester) -> Path:
    """A test whose golden lies in the store; nothing is in the cache."""
    pytester.makeconftest(CONFTEST)
    path = pytester.makepyfile(test_it=TEST.format(1))
    run("--specalign-golden=new").assert_outcomes(passed=1)
    return path


def stored(suite: Path) -> Path:
    (path,) = (path for path in (suite.parent / "remote").rglob("*") if path.is_file())
    return path


def test_the_repository_keeps_a_small_document_that_pins_the_file(run: Run, suite: Path) -> None:
    (document,) = (suite.parent / "__golden__").iterdir()
    assert document.name == "test_it.py~~test_f~~h.cpu.json"
    said = json.loads(document.read_text())
    assert (said["form"], said["sha256"], said["size"]) == ("external", stored(suite).name, stored(suite).stat().st_size)
    assert document.stat().st_size < 1000 < said["size"]
    run().assert_outcomes(passed=1)
    suite.write_text(TEST.format(2))
    result = run("--specalign-artifacts=out")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*first at [[]0, 0]: *(1.0) in the golden, *(2.0) in the result*".replace(".0", "*")])
    assert list((suite.parent / "out").rglob("expected.safetensors"))


def test_it_is_used_offline_once_it_was_fetched(run: Run, suite: Path) -> None:
    run().assert_outcomes(passed=1)
    stored(suite).unlink()
    run().assert_outcomes(passed=1)


def test_a_failed_download_fails_the_test(run: Run, suite: Path) -> None:
    stored(suite).unlink()
    for mode in ("check", "new", "update"):  # nor is another result taken in its place
        result = run(f"--specalign-golden={mode}")
        result.assert_outcomes(failed=1)
        result.stdout.fnmatch_lines(["E*cannot be fetched: FileNotFoundError*nothing was compared"])


def test_a_wrong_hash_fails_the_test(run: Run, suite: Path) -> None:
    data = bytearray(stored(suite).read_bytes())
    data[-1] ^= 1
    stored(suite).write_bytes(data)
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*what came for the golden * has the SHA-256 *"])


def test_a_store_that_skips_fails_the_test(run: Run, suite: Path) -> None:
    (suite.parent / "conftest.py").write_text(
        "import pytest\n\nclass Store:\n    def fetch(self, sha256, size):\n        pytest.skip('offline')\n"
        "    keep = fetch\n\ndef pytest_specalign_golden_store():\n    return Store()\n"
    )
    result = run()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*the store of goldens wants to skip (offline)*"])


def test_without_the_hook_or_with_a_wrong_one_it_says_what_to_do(run: Run, suite: Path) -> None:
    conftest = suite.parent / "conftest.py"
    conftest.write_text("def pytest_specalign_golden_store():\n    return 's3://bucket'\n")
    run().stdout.fnmatch_lines(["E*pytest_specalign_golden_store: returned 's3://bucket', which has no fetch*"])
    conftest.unlink()
    run().stdout.fnmatch_lines(["E*implement pytest_specalign_golden_store(config) in a conftest*"])


def test_an_update_moves_the_pin(run: Run, suite: Path) -> None:
    suite.write_text(TEST.format(2))
    before = stored(suite)
    run("--specalign-golden=update").assert_outcomes(passed=1)
    run().assert_outcomes(passed=1)
    assert before.exists()  # older commits still point at it
    suite.write_text(TEST.format(2).replace("external", "values"))
    run("--specalign-golden=update").assert_outcomes(passed=1)
    assert [path.suffix for path in (suite.parent / "__golden__").iterdir()] == [".safetensors"]

"""What the plugin keeps in `config.stash`. There are no module globals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_specalign.bitwise import Observer
    from pytest_specalign.golden_run import GoldenRun
    from pytest_specalign.gpu_tests import Selection
    from pytest_specalign.judgement import Judgement
    from pytest_specalign.options import Setting
    from pytest_specalign.policy import Policy
    from pytest_specalign.record import Record
    from pytest_specalign.verdicts import Comparison
    from pytest_specalign.waivers import Waiver
    from specalign.leases import Lease, Pool
    from specalign.ranks import Meeting

SETTINGS: pytest.StashKey[Mapping[str, Setting]] = pytest.StashKey()
"""The options that somebody set, by name: written once, by `options.settings`."""

ENVIRONMENT: pytest.StashKey[Mapping[str, str]] = pytest.StashKey()
"""What the hook `pytest_specalign_environment` gathered: written once, by `report.environment`."""

POOL: pytest.StashKey[Pool] = pytest.StashKey()
"""Where this process asks for GPU leases: made by `leases.get_pool` when the first one is wanted."""

SESSION_LEASE: pytest.StashKey[Lease] = pytest.StashKey()
"""The lease of `--specalign-session-gpus`, where this process runs tests."""

NO_SESSION_LEASE: pytest.StashKey[str] = pytest.StashKey()
"""Why a worker of xdist has none: each of its tests fails with this."""

MEETING: pytest.StashKey[Meeting] = pytest.StashKey()
"""Where this process meets the others of an outer launch of ranks."""

MEMORY: pytest.StashKey[Mapping[int, int]] = pytest.StashKey()
"""Bytes of live tensors on each GPU when the last lease of this process began: what more there is may be garbage."""

BROKE: pytest.StashKey[bool] = pytest.StashKey()
"""On an item: setup or the call raised, so a traceback keeps the frame and its tensors alive."""

RANDOM_STATE: pytest.StashKey[Callable[[], Callable[[], object]]] = pytest.StashKey()
"""Of an item that uses `deterministic`: saves the state of its random numbers, and returns what puts it back."""

OBSERVER: pytest.StashKey[Observer] = pytest.StashKey()
"""Of an item that uses `bitwise`: what it observed."""

RUNNING: pytest.StashKey[Observer] = pytest.StashKey()
"""Of an item whose function is being called repeatedly: what its runs observe."""

COMPARISONS: pytest.StashKey[dict[tuple[str, str], Comparison]] = pytest.StashKey()
"""Of an item: kind and name → comparison that it noted (`verdicts.note_comparison`)."""

GPU_TEST: pytest.StashKey[bool] = pytest.StashKey()
"""On an item: it asked for a lease while it ran."""

POLICY: pytest.StashKey[Policy] = pytest.StashKey()
"""What `--specalign-gpu-policy` chose: written once, by `policy.get_policy`."""

WAIVERS: pytest.StashKey[tuple[Waiver, ...]] = pytest.StashKey()
"""The file of `--specalign-waivers`, read when the run begins."""

SELECTION: pytest.StashKey[Selection] = pytest.StashKey()
"""What collection did with GPU tests in this process; only while the plugin is active."""

RECORD: pytest.StashKey[Record] = pytest.StashKey()
"""What came of the tests, in the process that prints the summary; only while the plugin is active and tests run."""

JUDGEMENT: pytest.StashKey[Judgement] = pytest.StashKey()
"""What was made of that when the run ended, until it is printed."""

GOLDEN_RUN: pytest.StashKey[GoldenRun] = pytest.StashKey()
"""How this run treats goldens, and what it did with them: made by `golden_run.get_run` when the first one is wanted."""

GOLDEN_TESTS: pytest.StashKey[dict[str, str]] = pytest.StashKey()
"""Where goldens of collected tests lie, case-folded, and the node id of the test."""

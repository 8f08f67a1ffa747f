"""The fixture `deterministic`: seeds out of the node id, and settings under which the same call gives the same bits."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import pytest

from pytest_specalign.seeds import Undo, import_torch, node_seed, save_random_state, seed_all
from pytest_specalign.state import RANDOM_STATE
from pytest_specalign.torch_settings import deterministic_settings


@dataclasses.dataclass(frozen=True)
class Determinism:
    """What `deterministic` gives.

    Attributes:
        seed: 0 to 2^32 − 1, of this test: for generators of its own, like `numpy.random.default_rng(deterministic.seed)`.
    """

    seed: int


@pytest.fixture
def deterministic(request: pytest.FixtureRequest) -> Iterator[Determinism]:
    """Seeds and settings for a test whose bits count; all of it is put back afterwards, also after a failure.

    random, numpy's global generator and, where torch is installed, its generators of the CPU and every GPU are seeded from the
    node id (`pytest_specalign.seeds.node_seed`). torch's settings are those of `pytest_specalign.torch_settings`.

    Not covered: fixtures that were set up before it (ask for it first: `@pytest.mark.usefixtures("deterministic")`), generators
    that a test makes without the seed, hash randomisation (`PYTHONHASHSEED`), and the number of threads, which on a CPU decides
    how sums are split.
    """
    torch = import_torch()
    seed = node_seed(request.node)
    with contextlib.ExitStack() as stack:
        stack.callback(save_random_state(torch))
        if torch is not None:
            stack.enter_context(deterministic_settings(torch))
        seed_all(seed, torch)
        request.node.stash[RANDOM_STATE] = lambda: save_random_state(torch)
        stack.callback(request.node.stash.__delitem__, RANDOM_STATE)
        yield Determinism(seed)


def save_for_next_run(item: pytest.Item) -> Undo:
    """What brings the random numbers back to where they are now, if the test asked for `deterministic`; else nothing happens."""
    save = item.stash.get(RANDOM_STATE, None)
    return save() if save is not None else lambda: None

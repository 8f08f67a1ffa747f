"""The seed of a test, and the random numbers of random, numpy and torch: set, saved and put back."""

from __future__ import annotations

import hashlib
import importlib
import random
from collections.abc import Callable
from typing import Any, Final

import pytest

SEED_SCHEME: Final = "specalign.seed/1"
"""Stands before the node id in what is hashed. A change of the rule changes this name, and every seed with it."""

Undo = Callable[[], object]


def node_seed(node: pytest.Item) -> int:
    """The seed of a test: the first 4 bytes, little-endian, of SHA-256 over `specalign.seed/1`, a line feed and the node id.

    0 to 2^32 − 1, which every generator takes. The node id (UTF-8) is that of the collection tree, relative to rootdir: what
    xdist appends to it under `--dist loadgroup` (`@group`) does not count, so that a test has the same seed however it is run.
    """
    parent = node.parent.nodeid if node.parent is not None else ""
    text = f"{SEED_SCHEME}\n{parent}::{node.name}"
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:4], "little")


def import_torch() -> Any | None:
    """torch, or None where it is not installed."""
    try:
        return importlib.import_module("torch")
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        return None


def seed_all(seed: int, torch: Any | None) -> None:
    """Seed random, numpy's global generator, and torch's generators of the CPU and every GPU, without initialising CUDA."""
    random.seed(seed)
    _numpy().random.seed(seed)
    if torch is not None:
        torch.default_generator.manual_seed(seed)
        torch.cuda.manual_seed_all(seed)


def save_random_state(torch: Any | None) -> Undo:
    """What puts every generator of `seed_all` back to where it is now."""
    undo = [_save_python(), _save_numpy()]
    if torch is not None:
        undo += [_save_torch(torch), _save_cuda(torch)]

    def restore() -> None:
        for step in undo:
            step()

    return restore


def _save_python() -> Undo:
    state = random.getstate()
    return lambda: random.setstate(state)


def _save_numpy() -> Undo:
    numpy = _numpy()
    state = numpy.random.get_state()
    return lambda: numpy.random.set_state(state)


def _save_torch(torch: Any) -> Undo:
    state = torch.default_generator.get_state()
    return lambda: torch.default_generator.set_state(state)


def _save_cuda(torch: Any) -> Undo:
    """Before CUDA is initialised, seeds wait in a queue: then it is the queue that is saved."""
    if torch.cuda.is_initialized():
        states = torch.cuda.get_rng_state_all()
        return lambda: torch.cuda.set_rng_state_all(states)
    tracker = torch.cuda._lazy_seed_tracker
    queue = {name: list(value) if isinstance(value, list) else value for name, value in vars(tracker).items()}

    def restore() -> None:
        if torch.cuda.is_initialized():
            for generator in torch.cuda.default_generators:  # as they come up, then whatever was waiting
                generator.manual_seed(torch.Generator(generator.device).initial_seed())
            for call in filter(None, queue["call_order"]):
                call[0]()
        else:
            vars(tracker).update({name: list(value) if isinstance(value, list) else value for name, value in queue.items()})

    return restore


def _numpy() -> Any:
    return importlib.import_module("numpy")

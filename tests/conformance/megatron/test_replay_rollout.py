"""Routes that come as a rollout engine's answers, replayed in megatron-core's own model; and the examples of docs/routing-replay.md."""

# ruff: noqa: E402  # without megatron-core the module is skipped before it imports what needs it

from __future__ import annotations

import base64
import inspect
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from torch import Tensor

from specalign.integrations.megatron_replay import install
from specalign.routing.replay_order import TokenOrder
from specalign.routing.replay_rollout import RolloutRoutes
from tests.conformance.megatron.moe import BATCH, EXPERTS, LAYERS, LENGTH, TOPK, gpt, loss_of, one_rank, same_bits, token_losses

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of megatron-core itself, about what is not installed beside it
]

DOCS = Path(__file__).parents[3] / "docs" / "routing-replay.md"
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
LENGTHS = (LENGTH, LENGTH - 2)


@pytest.fixture(scope="module", autouse=True)
def parallel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_rank(tmp_path_factory.mktemp("gloo")):
        yield


def answer(recorded: list[Tensor], sample: int, start: int, end: int) -> dict[str, Any]:
    """What SGLang would say of positions start..end-1: rows of all layers. Recorded rows are [position, sample]."""
    values = [int(one[p * BATCH + sample, slot]) for p in range(start, end) for one in recorded for slot in range(TOPK)]
    sent = base64.b64encode(struct.pack(f"<{len(values)}i", *values)).decode()
    return {"meta_info": {"routed_experts": sent}, "tokens": end + 1, "start": start}


def requests_of(recorded: list[Tensor]) -> list[dict[str, Any]]:
    """Each sample of a microbatch as a request that was aborted after three tokens and went on."""
    return [
        {
            "id": f"r{sample}",
            "length": length,
            "answers": [answer(recorded, sample, 0, 2), answer(recorded, sample, 2, length - 1)],
        }
        for sample, length in enumerate(LENGTHS)
    ]


def test_a_rollouts_answers_replay_to_the_same_loss_of_every_token_that_has_routes() -> None:
    model = gpt()
    order = TokenOrder.sequence_first(LENGTHS, LENGTH)
    with install(model) as replays:
        with replays.recording(1):
            first = token_losses(model, 0).detach()
        recorded = [replay.recorded[0] for replay in replays.replays]
        samples = []
        for request in requests_of(recorded):
            samples.append(RolloutRoutes(request["id"], num_layers=LAYERS, topk=TOPK, num_experts=EXPERTS))
            for one in request["answers"]:
                samples[-1].append(one["meta_info"]["routed_experts"], tokens=one["tokens"], start=one["start"])
        given = [order.routes_in(samples, replay.layer_number - 1) for replay in replays.replays]  # type: ignore[operator]
        replays.clear()
        replays.load(given)
        with replays.replaying(1):
            again = token_losses(model, 0).detach()
    for sample, length in enumerate(LENGTHS):
        kept = slice(0, length - 1)
        assert same_bits([again[sample, kept]], [first[sample, kept]])
        assert not torch.equal(again[sample, length - 1 :], first[sample, length - 1 :])  # experts of no choice of theirs


def test_zigzag_is_how_megatron_cuts_a_batch_for_context_parallelism(monkeypatch: pytest.MonkeyPatch) -> None:
    from megatron.core import utils

    size, width = 2, 8
    known = inspect.signature(utils.get_batch_on_this_cp_rank).parameters
    newer = {"is_hybrid_cp": False} if "is_hybrid_cp" in known else {}  # 0.19 asks for it
    whole = TokenOrder.sequence_first((8, 5, 7), width)
    grid = whole.source.view(width, 3).T.contiguous()
    for rank in range(size):
        group = SimpleNamespace(size=lambda: size, rank=lambda rank=rank: rank)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: group.size())  # 0.19 asks torch
        monkeypatch.setattr(torch.distributed, "get_rank", lambda group: group.rank())
        theirs = utils.get_batch_on_this_cp_rank({"tokens": grid.clone()}, cp_group=group, **newer)["tokens"]
        assert torch.equal(whole.zigzag(rank, size).source, theirs.T.flatten())


def test_a_layer_without_experts_has_no_router_and_the_numbers_are_those_of_all_layers() -> None:
    with install(gpt(moe_layer_freq=[0, 1])) as replays:
        assert [(place.name, place.layer_number) for place in replays.places] == [("decoder.layers.1.mlp.router", 2)]


def test_the_examples_of_the_docs_work() -> None:
    in_megatron, rollout = re.findall(r"```python\n(.*?)```", DOCS.read_text("utf-8"), flags=re.DOTALL)
    losses: list[Tensor] = []

    def forward_backward(model: Any, batches: range) -> None:
        for seed in batches:
            loss = loss_of(model, seed)
            losses.append(loss.detach())
            loss.backward()

    def forward(model: Any, seed: int) -> Tensor:
        return loss_of(model, seed)

    model, batches = gpt(**FULL), range(2)
    space = {"torch": torch, "model": model, "batches": batches, "forward": forward, "forward_backward": forward_backward}
    exec(in_megatron, space)
    assert same_bits(losses, [loss.detach() for loss in space["old"]])
    with install(model) as replays:
        with torch.no_grad(), replays.recording(2):
            assert same_bits([loss_of(model, seed) for seed in batches], losses)
        recorded = [[replay.recorded[at] for replay in replays.replays] for at in batches]
    losses.clear()
    exec(rollout, {**space, "rollouts": [requests_of(one) for one in recorded]})
    assert len(losses) == len(batches)

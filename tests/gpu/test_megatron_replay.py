"""Replay in the routers of megatron-core 0.19's own GPTModel on a GPU: one NCCL rank, local layer spec, all-gather dispatcher.

Where megatron-core is not installed these tests skip, which `make gpu-test` allows by tests/gpu/waivers.toml and counts. Without
dependencies its wheel is enough: `pip install --no-deps --target DIR megatron-core==0.19.2`, and DIR on PYTHONPATH.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import Tensor  # noqa: E402

from pytest_specalign.determinism import Determinism  # noqa: E402
from specalign.integrations.megatron_replay import install  # noqa: E402
from specalign.routing.errors import RoutingError  # noqa: E402
from specalign.routing.replay_group import ReplayGroup  # noqa: E402
from tests.conformance.megatron.moe import EXPERTS, forward_backward, gpt, loss_of, same_bits  # noqa: E402
from tests.unit.routing.replays import Layer, ids, recomputed, replay, route, scores  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of megatron-core itself, about what is not installed beside it
]

SEEDS = range(3)
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module")
def parallel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One rank."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    from megatron.core import parallel_state, tensor_parallel

    torch.cuda.set_device(0)
    store = tmp_path_factory.mktemp("nccl") / "store"
    torch.distributed.init_process_group("nccl", init_method=f"file://{store}", rank=0, world_size=1)
    try:
        parallel_state.initialize_model_parallel()
        tensor_parallel.model_parallel_cuda_manual_seed(0)
        for dtype in DTYPES:  # what megatron-core keeps for good is no leak of the first test
            forward_backward(on_gpu(dtype), SEEDS, ahead=1)
        yield
        parallel_state.destroy_model_parallel()
    finally:
        torch.distributed.destroy_process_group()


@pytest.fixture
def megatron(parallel: None, deterministic: Determinism) -> None:
    """Without torch's deterministic kernels its own sums differ from run to run."""


def on_gpu(dtype: torch.dtype, **config: Any) -> Any:
    precision = {"params_dtype": dtype, "bf16": dtype is torch.bfloat16, "masked_softmax_fusion": False}
    return gpt(**precision, **config).to("cuda", dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_loss_and_gradients_are_those_of_the_model_without_replay_bit_for_bit(megatron: None, dtype: torch.dtype) -> None:
    plain = forward_backward(on_gpu(dtype), SEEDS, ahead=1)
    model = on_gpu(dtype)
    with install(model) as replays:
        with replays.recording(len(SEEDS)):
            recorded = forward_backward(model, SEEDS, ahead=1)
        with replays.replaying(len(SEEDS)):
            replayed = forward_backward(model, SEEDS, ahead=1)
    for losses, grads in (recorded, replayed):
        assert same_bits(losses, plain[0])
        assert same_bits(grads, plain[1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_recomputation_replays_the_columns_of_its_forward(megatron: None, dtype: torch.dtype) -> None:
    """The live model's may differ: 0.19 sorts the experts in the recomputation and not in the forward."""
    model = on_gpu(dtype, **FULL)
    with install(model) as replays:
        with replays.recording(len(SEEDS), recomputations=1):
            recorded = forward_backward(model, SEEDS, ahead=2)
        for _ in range(3):
            with replays.replaying(len(SEEDS), recomputations=1):
                replayed = forward_backward(model, SEEDS, ahead=2)
            assert same_bits(replayed[0], recorded[0])
            assert same_bits(replayed[1], recorded[1])


def test_what_a_pass_without_gradients_recorded_is_replayed_in_training(megatron: None) -> None:
    model = on_gpu(torch.bfloat16)
    with install(model) as replays:
        with torch.inference_mode(), replays.recording(1):
            first = loss_of(model, 0)
        with replays.replaying(1):
            again = loss_of(model, 0)
            again.backward()
    assert same_bits([again.detach()], [first])


def test_other_ids_give_another_loss(megatron: None) -> None:
    model = on_gpu(torch.bfloat16)
    with install(model) as replays:
        with replays.recording(1):
            first = loss_of(model, 0).detach()
        kept = [one.recorded[0] for one in replays.replays]
        replays.clear()
        replays.load([(one + EXPERTS // 2) % EXPERTS for one in kept])
        with replays.replaying(1):
            other = loss_of(model, 0).detach()
    assert not same_bits([first], [other])


def test_backwards_in_another_order_than_was_said_are_found_when_the_pass_ends(megatron: None) -> None:
    model = on_gpu(torch.float32, **FULL)
    with install(model) as replays:
        with replays.recording(2, recomputations=1):
            forward_backward(model, range(2), ahead=1)
        model.zero_grad()
        with pytest.raises(RoutingError, match=r"saw other scores .* of microbatch 1"), replays.replaying(2, recomputations=1):
            (loss_of(model, 0) + loss_of(model, 1)).backward()


def test_ids_lie_in_page_locked_memory_of_their_own() -> None:
    one = replay()
    every = torch.stack([ids(seed) for seed in range(16)], dim=1).cuda()
    one.add(every[:, 3])
    kept = one._kept[0]
    assert isinstance(kept, Tensor)
    assert kept.is_pinned()
    assert torch.equal(kept, ids(3).to(torch.int32))


def test_a_replay_never_waits_for_the_gpu() -> None:
    one = replay()
    one.add(ids(0))
    layer, x = Layer(one).cuda(), scores(1).cuda().requires_grad_()
    one.begin("replay", microbatches=1, recomputations=1)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        recomputed(layer, x).sum().backward()
    except RuntimeError as error:
        if "synchronizing" in str(error):
            pytest.fail(str(error))
        raise
    finally:
        torch.cuda.set_sync_debug_mode("default")
    one.end()


def test_a_router_in_a_cuda_graph_is_refused() -> None:
    one = replay()
    one.add(ids(0))
    live = scores(0).cuda()
    with ReplayGroup([one]).replaying(1):
        with (
            pytest.raises(RoutingError, match="a CUDA graph would replay one microbatch's ids"),
            torch.cuda.graph(torch.cuda.CUDAGraph()),
        ):
            route(one, live)
        route(one, live)

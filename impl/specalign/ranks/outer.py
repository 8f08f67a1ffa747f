"""Runs a function on the ranks of an outer launch: in this process, which is one of them.

Nothing is started here and nobody watches from outside, so the ranks tell each other through the launch's store (`board`): each
says that it came, and how its function ended. A rank that raised takes its side of the group down, so that collectives of the
others fail.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import pickle
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from specalign.leases.errors import LeaseError
from specalign.ranks.board import Board, Meeting
from specalign.ranks.calls import pack
from specalign.ranks.errors import RanksFailedError
from specalign.ranks.gpus import use_device
from specalign.ranks.told import describe, unpicklable
from specalign.ranks.watch import Watch

if TYPE_CHECKING:
    from specalign.ranks.group import RankGroup
    from specalign.ranks.launch import Launch

SLACK = 15.0
"""Seconds that ranks wait for each other beyond the function's own time."""


def run_outer(
    meeting: Meeting, launch: Launch, group: RankGroup, what: str, place: str, function: Callable[[], Any]
) -> list[Any]:
    """Run `function` here as this process's rank; the results of all ranks, by rank, on each of them.

    Raises:
        RanksFailedError: a rank raised, did not come, or did not say in time how it ended.
        RankGroupError: the ranks came with different calls, or one of them cannot join.
    """
    __tracebackhide__ = True
    torch: Any = importlib.import_module("torch")
    board = meeting.board(torch, launch, what, place, group.timeout)
    board.meet(_problem(torch, launch, group), group.timeout)
    with _joined(torch, board, launch, group) as leave:
        packed, error = _run(torch, board, group, function, leave)
        failures = board.failures("end", SLACK if error else group.timeout + SLACK, SLACK)
        if isinstance(error, KeyboardInterrupt):
            raise error
        if failures:
            leave()
            raise RanksFailedError(what, launch.world_size, failures)
        gathered: list[Any] = [None] * launch.world_size
        torch.distributed.all_gather_object(gathered, packed)
        results = [pickle.loads(one) for one in gathered]  # noqa: S301  # from ranks of the same launch
        board.say("read", {})
        board.wait("read", SLACK)  # nobody takes the group down under a rank that still reads
    return results


def _run(
    torch: Any, board: Board, group: RankGroup, function: Callable[[], Any], leave: Callable[[], None]
) -> tuple[bytes, BaseException | None]:
    """The packed result, or what was raised; the others are told either way."""
    try:
        with Watch(board, group.timeout, SLACK, leave if group.needs_gpus else None), group.around:
            result = function()
            if group.needs_gpus:
                torch.cuda.synchronize()  # what went wrong on the GPU shows here at the latest
        try:
            packed = pack(result)
        except Exception as problem:
            raise unpicklable(board.launch.rank, result, problem) from problem
    except BaseException as error:  # a rank that exits, or skips, gives no result either
        board.say("end", describe(error), failed=True)
        error.__traceback__ = None  # its frames may hold the group, and with it the connections
        leave()
        return b"", error
    board.say("end", {})
    return packed, None


def _problem(torch: Any, launch: Launch, group: RankGroup) -> str:
    """Why this rank cannot join; empty where it can."""
    if group.needs_gpus:
        try:
            use_device(torch, group.devices[launch.local_rank])
        except LeaseError as error:
            return str(error)
    distributed = torch.distributed
    if distributed.is_initialized():
        backend, size = distributed.get_backend(), distributed.get_world_size()
        if (backend, size) != (group.backend, group.world_size):
            return f"this process has a default group already, of {size} ranks by {backend}: destroy it, or ask for the same"
    return ""


@contextlib.contextmanager
def _joined(torch: Any, board: Board, launch: Launch, group: RankGroup) -> Iterator[Callable[[], None]]:
    """A default group, made here unless there is one; gives what leaves it without waiting for the others."""
    distributed = torch.distributed
    if distributed.is_initialized():
        yield lambda: None
        return
    late = SLACK if group.needs_gpus else 0.0  # a collective that is late raises with gloo, and ends the process with NCCL
    distributed.init_process_group(
        group.backend,
        store=distributed.PrefixStore(board.key("group"), board.store),
        rank=launch.rank,
        world_size=launch.world_size,
        timeout=datetime.timedelta(seconds=group.timeout + late),
        **({"device_id": torch.device("cuda", torch.cuda.current_device())} if group.needs_gpus else {}),
    )
    left = False

    def leave() -> None:
        nonlocal left
        if not left and distributed.is_initialized():
            left = True
            abort = getattr(distributed.distributed_c10d, "_abort_process_group", None) if group.needs_gpus else None
            (abort or distributed.destroy_process_group)()

    try:
        yield leave
    finally:
        leave()

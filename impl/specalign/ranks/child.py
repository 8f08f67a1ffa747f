"""What a rank does: join, run the function, leave its result or its failure in the run's folder, end."""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import importlib
import json
import os
import pickle
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Final

from specalign.ranks.calls import pack
from specalign.ranks.gpus import use_device
from specalign.ranks.modules import SentModules
from specalign.ranks.orphans import end_with_parent
from specalign.ranks.plan import Plan, call_file, failure_file, result_file, stacks_file, store_file
from specalign.ranks.told import describe, unpicklable

STACKS_SIGNAL: Final = signal.SIGUSR1
"""Writes the stacks of all threads to the rank's file: from C, also where Python waits in a collective."""


def main(argv: list[str]) -> None:
    """`argv`: -, folder, rank, file descriptor of the socket to the warden, the warden's pid."""
    folder, rank, warden = Path(argv[1]), int(argv[2]), socket.socket(fileno=int(argv[3]))
    end_with_parent(int(argv[4]), signal.SIGKILL)
    warden.set_inheritable(False)
    stacks = stacks_file(folder, rank).open("wb", buffering=0)
    faulthandler.enable(stacks)
    faulthandler.register(STACKS_SIGNAL, stacks, all_threads=True)
    warden.sendall(b"s")
    plan = Plan.read(folder)
    sys.meta_path.insert(0, SentModules(plan.modules))
    mine = os.getpid()
    try:
        packed = _run(plan, folder, rank, warden)
        _end_copy(mine, "returned from the rank's function")
        result_file(folder, rank).write_bytes(packed)
    except BaseException as error:  # a rank that exits, or skips, gives no result either
        told = describe(error)
        _end_copy(mine, f"{told['reason']}\n{told['details']}")
        failure_file(folder, rank).write_text(json.dumps(told), "utf-8")
        warden.sendall(b"f")
        _flush()
        os._exit(1)  # at once: taking the group down may hang, and the others are to see that this one is gone
    warden.sendall(b"r")
    warden.recv(1)
    importlib.import_module("torch.distributed").destroy_process_group()


def _run(plan: Plan, folder: Path, rank: int, warden: socket.socket) -> bytes:
    around, call = pickle.loads(call_file(folder).read_bytes())  # noqa: S301  # written by our parent: see `calls`
    function, args, kwargs = pickle.loads(call)  # noqa: S301
    torch = _join(plan, folder, rank)
    warden.sendall(b"j")
    if around is None:
        result = function(*args, **kwargs)
    else:
        with around():
            result = function(*args, **kwargs)
    if plan.devices:
        torch.cuda.synchronize()  # what went wrong on the GPU shows here at the latest
    try:
        return pack(result)
    except Exception as problem:
        raise unpicklable(rank, result, problem) from problem


def _join(plan: Plan, folder: Path, rank: int) -> Any:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    more = {}
    if plan.devices:
        more = {"device_id": use_device(torch, plan.devices[rank])}
    distributed = torch.distributed
    if not distributed.is_available():
        raise RuntimeError(f"torch {torch.__version__} was built without torch.distributed: install one that has it")
    distributed.init_process_group(
        plan.backend,
        store=distributed.FileStore(str(store_file(folder)), plan.world_size),
        rank=rank,
        world_size=plan.world_size,
        timeout=datetime.timedelta(seconds=plan.group_timeout),
        **more,
    )
    return torch


def _end_copy(rank: int, did: str) -> None:
    """End a process that the function forked and did not end: its result is not the rank's, which speaks for itself."""
    if os.getpid() != rank:
        text = f"specalign: a process that pid {rank} forked {did}, and is ended: end it in the function, by os._exit\n"
        os.write(2, text.encode("utf-8", "backslashreplace"))
        os._exit(1)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # closed, full, or replaced by the function
            stream.flush()

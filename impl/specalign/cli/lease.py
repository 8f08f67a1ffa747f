"""`specalign lease --count N -- CMD`."""

from __future__ import annotations

import argparse
import os
import sys

from specalign.cli.lease_options import add_folder_arguments, default_timeout, lock_folder, plain_errors
from specalign.leases import Lease, LeaseError, Pool, Request, discover, read_capability, read_memory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.usage = "specalign lease [options] -- CMD [ARG ...]"
    parser.epilog = (
        "CMD takes the place of this command and keeps the lease until it ends, however it does; its exit code is this one's."
        " It sees the leased GPUs only. Exit code 2: no lease, or no such command."
    )
    parser.add_argument("--count", type=int, default=1, metavar="N", help="number of GPUs; default: 1")
    parser.add_argument("--capability", metavar="X.Y", help="least compute capability, like 9.0")
    parser.add_argument("--memory", metavar="SIZE", help="memory that must be free on each, like 40GiB")
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="how long to wait [SPECALIGN_LEASE_TIMEOUT; default: 600]"
    )
    add_folder_arguments(parser)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="CMD", help="what to run, after --")
    parser.set_defaults(run=run)


@plain_errors
def run(args: argparse.Namespace) -> int:
    """Take the lease, then become the command; returns only where one of both fails."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise LeaseError("no command: write it after --, as in `specalign lease --count 2 -- torchrun train.py`")
    try:
        request = Request(
            args.count,
            None if args.capability is None else read_capability(args.capability),
            None if args.memory is None else read_memory(args.memory),
        )
    except ValueError as error:
        raise LeaseError(str(error)) from None
    pool = Pool(discover, lock_folder(args))
    lease = pool.lease(request, default_timeout() if args.timeout is None else args.timeout)
    print(f"specalign lease: {', '.join(map(str, lease.devices))}", file=sys.stderr, flush=True)
    _become(command, pool, lease)
    return 0


def _become(command: list[str], pool: Pool, lease: Lease) -> None:
    """Replace this process, locks and all: nothing stays between the command and who started it."""
    for fd in pool.lock_fds(lease):
        os.set_inheritable(fd, True)
    try:
        os.execvpe(command[0], command, lease.env)  # noqa: S606  # a command that the user wrote, and no shell
    except OSError as error:
        lease.release()
        raise LeaseError(f"cannot run {command[0]!r}: {error.strerror or error}") from error

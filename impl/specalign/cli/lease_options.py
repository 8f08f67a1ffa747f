"""What `specalign lease` and `specalign doctor` share: where the locks are, from the flag or the plugin's own variables."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable
from pathlib import Path

from specalign.layer_ids.files import InputError
from specalign.leases import DEFAULT_FOLDER, DEFAULT_TIMEOUT, LeaseError, LockFolder
from specalign.leases.locks import DEFAULT_PATTERN


def plain_errors(verb: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """A lease that fails ends the command with one line and exit code 2, as unusable input does."""

    @functools.wraps(verb)
    def run(args: argparse.Namespace) -> int:
        try:
            return verb(args)
        except LeaseError as error:
            raise InputError(str(error)) from error

    return run


def add_folder_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --lock-dir and --lock-pattern."""
    parser.add_argument(
        "--lock-dir",
        metavar="DIR",
        default=os.environ.get("SPECALIGN_LOCK_DIR") or str(DEFAULT_FOLDER),
        help=f"folder of the machine's lock files [SPECALIGN_LOCK_DIR; default: {DEFAULT_FOLDER}]",
    )
    parser.add_argument(
        "--lock-pattern",
        metavar="NAME",
        default=os.environ.get("SPECALIGN_LOCK_PATTERN") or DEFAULT_PATTERN,
        help="name of a GPU's lock file, with {uuid} or {index} [SPECALIGN_LOCK_PATTERN; default: {uuid}.lock]",
    )


def lock_folder(args: argparse.Namespace) -> LockFolder:
    """The folder that the arguments name."""
    return LockFolder(Path(args.lock_dir), args.lock_pattern)


def default_timeout() -> float:
    """Seconds, from SPECALIGN_LEASE_TIMEOUT where it is set."""
    text = os.environ.get("SPECALIGN_LEASE_TIMEOUT", "").strip()
    try:
        return float(text) if text else DEFAULT_TIMEOUT
    except ValueError:
        raise LeaseError(f"SPECALIGN_LEASE_TIMEOUT is {text!r}: give seconds") from None

"""Runs a call on ranks of its own: the side of the process that asks."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from specalign.ranks.errors import RankFailure, RankGroupError, RanksFailedError, RankWarning
from specalign.ranks.orphans import signal_name
from specalign.ranks.plan import Plan, call_file, failure_file, python_command, result_file, stacks_file
from specalign.ranks.told import unreadable

_END_PATIENCE: Final = 30.0
_NO_OUTER: Final = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "GROUP_RANK",
    "ROLE_RANK",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
)


def run_spawned(what: str, plan: Plan, packed: bytes, changes: Mapping[str, str]) -> list[Any]:
    """Start the ranks, wait for them, and return their results by rank. When this returns or raises, no process is left.

    Args:
        what: names the call, for messages.
        plan: what the ranks are told.
        packed: the call.
        changes: to the environment: those of the lease.

    Raises:
        RanksFailedError: a rank gave no result.
        RankGroupError: the warden was killed.
    """
    __tracebackhide__ = True
    folder = Path(tempfile.mkdtemp(prefix="specalign-ranks-"))  # mode 700
    try:
        plan.write(folder)
        call_file(folder).write_bytes(packed)
        with _warden(folder, changes) as answer:
            summary = _read_summary(what, answer)
            failures = list(_failures(folder, plan, summary))
            left = [f"left behind, and killed: {process}" for process in summary["left"]]
            if failures:
                raise RanksFailedError(what, plan.world_size, failures, left)
            results = _results(what, folder, plan, summary)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if left:
        warnings.warn(RankWarning("\n  ".join([f"{what}: stop what the function starts:", *left])), stacklevel=3)
    return results


@contextlib.contextmanager
def _warden(folder: Path, changes: Mapping[str, str]) -> Iterator[Iterator[str]]:
    """A warden that works; gives what it says at the end. It ends when the block does, whatever happens in it."""
    environ = {name: value for name, value in os.environ.items() if name not in _NO_OUTER}
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8") as answer:
        try:
            process = subprocess.Popen(
                python_command("warden", folder, writing),
                stdin=subprocess.PIPE,
                pass_fds=[writing],
                start_new_session=True,
                env={**environ, **changes},
            )
        finally:
            os.close(writing)
        try:
            yield answer
        finally:
            if process.stdin is not None:
                process.stdin.close()  # it ends all that it started, and then itself
            try:
                process.wait(_END_PATIENCE)
            finally:
                process.kill()  # and with it, by the kernel, the ranks
                process.wait()


def _read_summary(what: str, answer: Iterator[str]) -> dict[str, Any]:
    __tracebackhide__ = True
    text = "".join(answer)
    if not text:
        raise RankGroupError(
            f"{what}: the process that watches the ranks ended before they did; its last words are in stderr, if any"
        )
    summary: dict[str, Any] = json.loads(text)
    return summary


def _results(what: str, folder: Path, plan: Plan, summary: Mapping[str, Any]) -> list[Any]:
    """What each rank returned. Raises `RanksFailedError` for what cannot be unpickled in this process."""
    __tracebackhide__ = True
    results, failures = [], []
    for told in summary["ranks"]:
        try:
            results.append(pickle.loads(result_file(folder, told["rank"]).read_bytes()))  # noqa: S301  # from our own ranks
        except Exception as error:  # a value's own code raises what it wants
            said = unreadable(error)
            failures.append(RankFailure(told["rank"], socket.gethostname(), told["pid"], said["reason"], said["details"]))
    if failures:
        raise RanksFailedError(what, plan.world_size, failures)
    return results


def _failures(folder: Path, plan: Plan, summary: Mapping[str, Any]) -> Iterator[RankFailure]:
    orders = [told["order"] for told in summary["ranks"] if told["order"] is not None]
    for told in summary["ranks"]:
        reason, details = _why(folder, told)
        if reason:
            first = len(orders) > 1 and told["order"] == min(orders)
            yield RankFailure(told["rank"], socket.gethostname(), told["pid"], reason, details, first)


def _why(folder: Path, told: Mapping[str, Any]) -> tuple[str, str]:
    """Reason and details; empty where the rank returned its result and ended well."""
    rank, state, code = told["rank"], told["state"], told["code"]
    if state == "failed":
        failure = json.loads(failure_file(folder, rank).read_text("utf-8"))
        return failure["reason"], failure["details"]
    if told["late"]:
        if state == "starting":
            return f"{told['late']}, and was killed; it was still starting", ""
        return f"{told['late']}, and was killed", _stacks(
            folder, rank
        ) or "its stacks could not be had: it did not take the signal"
    if state == "returned" and (told["killed"] or not code):
        return "", ""
    returned = "returned, then " if state == "returned" else ""
    missing = "" if state == "returned" else " before it returned"
    return f"{returned}ended by {_ending(code)}{missing}", _stacks(folder, rank)


def _ending(code: int | None) -> str:
    if code is None:
        return "no signal yet"
    return signal_name(-code) if code < 0 else f"exit code {code}"


def _stacks(folder: Path, rank: int) -> str:
    try:
        return stacks_file(folder, rank).read_text("utf-8", "replace")
    except OSError:
        return ""

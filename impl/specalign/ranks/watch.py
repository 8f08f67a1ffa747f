"""Watches the function of a rank that runs in this process: where nobody outside can end it."""

from __future__ import annotations

import faulthandler
import os
import tempfile
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final

from specalign.ranks.board import Board

_POLL: Final = 0.2
_LAST: Final = 60.0
"""Seconds after the timeout at which a function that still runs is ended with its process: it would hold the launch for ever."""


class Watch:
    """A thread beside the function, for as long as the block lasts.

    Args:
        board: where others say that they failed, and this rank says that it is late.
        timeout: seconds for the function.
        grace: seconds that it has when another rank has failed.
        leave: takes this rank's side of the group down, on which its collectives fail; None where they fail by themselves.
    """

    def __init__(self, board: Board, timeout: float, grace: float, leave: Callable[[], None] | None) -> None:
        self._board = board
        self._timeout = timeout
        self._grace = grace
        self._leave = leave
        self._over = threading.Event()
        self._late = ""
        self._thread = threading.Thread(target=self._watch, name="specalign-rank-watch", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Ends the thread.

        Raises:
            TimeoutError: the function has returned, and too late: the others have been told so.
        """
        self._over.set()
        self._thread.join()
        if self._late and error is None:
            raise TimeoutError(self._late)

    def _watch(self) -> None:
        left = self._timeout
        while left > 0:
            if self._leave is not None and any("reason" in said for said in self._board.heard("end").values()):
                if self._over.wait(min(left, self._grace)):
                    return
                break
            if self._over.wait(min(left, _POLL)):
                return
            left -= _POLL
        stacks = all_stacks()
        self._late = f"had not returned {self._timeout:g} s after all ranks had met"
        if left > 0:
            self._late = f"had not returned {self._grace:g} s after another rank had failed"
        self._board.say("late", {"reason": self._late, "details": stacks})
        if self._leave is not None:
            self._leave()
        if not self._over.wait(_LAST):
            os.write(2, f"{self._board.what}: still runs {_LAST:g} s after its timeout\n{stacks}".encode())
            os._exit(1)


def all_stacks() -> str:
    """The stacks of all threads of this process."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().decode("utf-8", "replace")

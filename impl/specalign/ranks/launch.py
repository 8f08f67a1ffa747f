"""The outer launch, as torchrun describes it to each of its processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from specalign.ranks.errors import RankGroupError

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclasses.dataclass(frozen=True)
class Launch:
    """This process's place in it.

    Attributes:
        rank: 0 to world_size − 1.
        world_size: processes on all nodes together.
        local_rank: number among the processes of this node, by which it chooses its GPU.
        local_world_size: processes of this node.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Launch | None:
        """What the environment says; None where it does not have all of `VARIABLES`.

        Without LOCAL_RANK and LOCAL_WORLD_SIZE all processes are taken to be of one node.

        Raises:
            RankGroupError: values that are no numbers, or no rank of such a world.
        """
        if not all(environ.get(name) for name in VARIABLES):
            return None
        given = {name: environ.get(name, default) for name, default in _numbers(environ)}
        try:
            read = {name: int(value) for name, value in given.items()}
        except ValueError:
            read = {}
        if not read or not 0 <= read["RANK"] < read["WORLD_SIZE"] or not 0 <= read["LOCAL_RANK"] < read["LOCAL_WORLD_SIZE"]:
            said = ", ".join(f"{name}={value!r}" for name, value in given.items())
            raise RankGroupError(f"the environment describes no launch of ranks ({said}): start with torchrun, or unset RANK")
        return cls(read["RANK"], read["WORLD_SIZE"], read["LOCAL_RANK"], read["LOCAL_WORLD_SIZE"])

    @classmethod
    def local_size(cls, environ: Mapping[str, str]) -> int:
        """How many processes of an outer launch are on this node; 1 where there is none.

        Raises:
            RankGroupError: see `read`.
        """
        launch = cls.read(environ)
        return 1 if launch is None else launch.local_world_size


def _numbers(environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    rank, size = environ["RANK"], environ["WORLD_SIZE"]
    return ("RANK", rank), ("WORLD_SIZE", size), ("LOCAL_RANK", rank), ("LOCAL_WORLD_SIZE", size)

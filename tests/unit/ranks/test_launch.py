"""The outer launch is read from the environment as torchrun writes it."""

from __future__ import annotations

import pytest

from specalign.ranks import Launch, RankGroupError
from specalign.ranks.launch import VARIABLES

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29500",
}  # fmt: skip


def test_torchrun() -> None:
    assert Launch.read(TORCHRUN) == Launch(5, 8, 1, 4)
    assert Launch.local_size(TORCHRUN) == 4


@pytest.mark.parametrize("name", VARIABLES)
def test_without_one_of_the_four_there_is_none(name: str) -> None:
    for rest in ({k: v for k, v in TORCHRUN.items() if k != name}, {**TORCHRUN, name: ""}):
        assert Launch.read(rest) is None
        assert Launch.local_size(rest) == 1


def test_without_local_numbers_all_are_on_one_node() -> None:
    assert Launch.read({name: TORCHRUN[name] for name in VARIABLES}) == Launch(5, 8, 5, 8)


@pytest.mark.parametrize(
    ("name", "value"), [("RANK", "x"), ("RANK", "8"), ("RANK", "-1"), ("WORLD_SIZE", "0"), ("LOCAL_RANK", "4")]
)
def test_numbers_that_make_no_launch_are_refused(name: str, value: str) -> None:
    with pytest.raises(RankGroupError, match=rf"describes no launch of ranks \(.*{name}='{value}'.*\): start with torchrun"):
        Launch.read({**TORCHRUN, name: value})

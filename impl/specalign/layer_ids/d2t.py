"""The table d2t of a head with its own vocabulary: offsets. Target token = draft token + d2t[draft token] (EAGLE, `cnets.py`)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

_SHORT: Final = 8
_LONG: Final = 256


def holds_token_ids(d2t: Sequence[int], vocab: int) -> bool:
    """Whether `d2t` lists target tokens (or plain arange) in place of offsets.

    Target tokens ascend strictly. Offsets of ascending tokens never fall, and stay equal wherever two neighbouring tokens are
    both kept, which happens in every vocabulary of a few hundred tokens. So a strict ascent is proof where the offsets would
    leave the vocabulary, where it is arange (offsets for every second token), and in any long table. A table of fewer than 8
    entries inside the vocabulary may be anything, and counts as offsets.
    """
    if len(d2t) < 2 or not all(0 <= a < b < vocab for a, b in itertools.pairwise(d2t)):
        return False
    is_arange = d2t[0] == 0 and d2t[-1] == len(d2t) - 1 and len(d2t) >= _SHORT
    return is_arange or len(d2t) - 1 + d2t[-1] >= vocab or len(d2t) >= _LONG

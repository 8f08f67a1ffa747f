"""Functions run on the ranks of a torch.distributed group: started for them, or those of an outer torchrun.

Standard library only in the process that asks; torch is imported in the ranks, and where tensors come back.
"""

from specalign.ranks.board import Meeting
from specalign.ranks.errors import RankFailure, RankGroupError, RanksFailedError, RankWarning
from specalign.ranks.group import BACKENDS, DEFAULT_TIMEOUT, RankGroup
from specalign.ranks.launch import Launch

__all__ = [
    "BACKENDS",
    "DEFAULT_TIMEOUT",
    "Launch",
    "Meeting",
    "RankFailure",
    "RankGroup",
    "RankGroupError",
    "RankWarning",
    "RanksFailedError",
]

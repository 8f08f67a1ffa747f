"""Speculative decoding with an EAGLE3 head: the draft–verify loop, and the replay of stored states. Needs torch."""

from specalign.speculate.decode import Decoded, Sampling, decode_plain, decode_speculative
from specalign.speculate.drafter import TreeShape
from specalign.speculate.rows import draft_rows
from specalign.speculate.target import Session, Target, TargetStep

__all__ = [
    "Decoded",
    "Sampling",
    "Session",
    "Target",
    "TargetStep",
    "TreeShape",
    "decode_plain",
    "decode_speculative",
    "draft_rows",
]

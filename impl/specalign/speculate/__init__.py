"""Speculative decoding with an EAGLE3 head: every row of a text drafted at once, for training and for replaying stored states."""

from specalign.speculate.rows import draft_rows

__all__ = ["draft_rows"]

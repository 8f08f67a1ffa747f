"""Acceptance figures: rounds, lengths, intervals, whether two runs differ. numpy only; `specalign.speculate` makes the counts."""

from specalign.acceptance.errors import AcceptanceError
from specalign.acceptance.metrics import Acceptance, Difference, Interval, difference, measure
from specalign.acceptance.prompts import Prompt, read_prompts
from specalign.acceptance.rounds import PromptRounds, Round, Rounds, accepted_prefix, replay_rounds
from specalign.acceptance.served import read_scrape, read_served
from specalign.acceptance.served_counters import Scrape, served_between
from specalign.acceptance.served_result import Served

__all__ = [
    "Acceptance",
    "AcceptanceError",
    "Difference",
    "Interval",
    "Prompt",
    "PromptRounds",
    "Round",
    "Rounds",
    "Scrape",
    "Served",
    "accepted_prefix",
    "difference",
    "measure",
    "read_prompts",
    "read_scrape",
    "read_served",
    "replay_rounds",
    "served_between",
]

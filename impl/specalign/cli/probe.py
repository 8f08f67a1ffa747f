"""`specalign probe`: which reading of a head's layer ids fits its target, measured."""

from __future__ import annotations

import argparse
from typing import Final

from specalign.cli.pair import add_pair_arguments, load_pair
from specalign.cli.progress import progress_line
from specalign.layer_ids.files import InputError, quoted

EXIT_CODES: Final = "0: one reading fits; 1: undecided; 2: unusable input"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `specalign probe`."""
    parser.epilog = f"Exit codes: {EXIT_CODES}."
    add_pair_arguments(parser, required=True, limit=80)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    pair = load_pair(args, new_tokens=32)
    short = next((name for name, tokens in pair.tokens.items() if len(tokens) < 2), None)
    if short is not None:
        raise InputError(f"prompt {quoted(short)} has fewer than 2 tokens, and the probe guesses the next one from those before")
    from specalign.draft import DraftError
    from specalign.speculate.head_states import stated_ids
    from specalign.speculate.probe import format_probe, probe_head

    try:
        with progress_line("asking", "texts") as progress:
            probe = probe_head(pair.target, pair.head, stated_ids(pair.spec.spec), pair.tokens, progress=progress)
    except DraftError as error:
        raise InputError(str(error)) from error
    print(format_probe(probe))
    return 1 if probe.undecided else 0

"""`specalign acceptance`: how many drafts of a head a target accepts, and what each silent fault would cost."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from specalign.acceptance import AcceptanceError, Served, read_scrape, read_served, served_between
from specalign.acceptance.gate import check_settings, format_verdict, judge
from specalign.acceptance.golden_file import golden_of, read_golden, write_golden
from specalign.acceptance.served_gate import format_served_verdict, judge_served
from specalign.cli.pair import add_pair_arguments, load_pair, parse_convention
from specalign.cli.progress import progress_line
from specalign.integrations.pair import Pair, described, measure_pair
from specalign.layer_ids.files import InputError, shown
from specalign.layer_ids.rewrite import write_text_atomically

if TYPE_CHECKING:
    from specalign.acceptance.report import Measured

EXIT_CODES: Final = (
    "0: measured, with --table every fault is told apart, with --gate nothing dropped; 1: not so; 2: unusable input"
)


_OF_A_PAIR: Final[Mapping[str, object]] = {
    "convention": None, "limit": None, "new_tokens": 64, "depth": 4, "loop_prompts": 8, "device": "cpu", "dtype": "float32",
}  # fmt: skip
"""Options that say how a pair is measured, and their defaults."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `specalign acceptance`."""
    parser.epilog = f"Exit codes: {EXIT_CODES}."
    add_pair_arguments(parser, required=False, limit=None)
    parser.add_argument(
        "--convention", choices=("boundary", "output", "hf"), help="what the head's ids mean, if they do not prove it"
    )
    parser.add_argument("--new-tokens", type=int, default=64, metavar="N", help="of each answer (default 64)")
    parser.add_argument("--depth", type=int, default=4, metavar="N", help="drafts of a chain (default 4)")
    parser.add_argument("--table", action="store_true", help="measure each silent fault and the controls beside the right way")
    parser.add_argument(
        "--loop-prompts", type=int, default=8, metavar="N", help="prompts that also run through the real loop, for two rows (8)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write specalign.acceptance/1; - is standard output")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page that needs no network")
    parser.add_argument(
        "--write-golden", type=Path, metavar="FILE", help="with --table: keep what was measured as the pair's golden"
    )
    parser.add_argument(
        "--gate", type=Path, metavar="FILE", help="hold what is measured, or read, against the pair's golden; a drop exits with 1"
    )
    parser.add_argument(
        "--from-log",
        nargs="+",
        metavar="SOURCE",
        help="read what a running engine reports, from a file or URL, not from a pair; two scrapes: what lies between",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure or read, print, write."""
    try:
        return _served(args) if args.from_log else _measured(args)
    except AcceptanceError as error:
        raise InputError(str(error)) from error


def _served(args: argparse.Namespace) -> int:
    if args.target or args.draft or args.prompts or args.table or args.html or args.json or args.write_golden:
        raise InputError(
            "--from-log stands alone or with --gate: it reads what an engine measured, so there is no pair to measure"
        )
    if extra := [f"--{name.replace('_', '-')}" for name, value in _OF_A_PAIR.items() if getattr(args, name) != value]:
        raise InputError(f"--from-log takes no {', '.join(extra)}: the engine was served with its own settings")
    if len(args.from_log) > 2:
        raise InputError(f"--from-log takes one source, or two scrapes: {len(args.from_log)} came")
    golden = None if args.gate is None else read_golden(args.gate)
    if len(args.from_log) == 2:
        served = served_between(*(read_scrape(source) for source in args.from_log))
    else:
        served = read_served(args.from_log[0])
    verdict = None if golden is None else judge_served(golden, served)
    print(format_served(served))
    if verdict is not None:
        print(format_served_verdict(verdict))
    return 0 if verdict is None or verdict.ok else 1


def format_served(served: Served) -> str:
    """Figures of an engine as text."""
    length = f"{served.low:.3f} .. {served.high:.3f}" if served.length is None else f"{served.length:.3f}"
    bounds = "" if served.length is None or served.low == served.high else f" (within {served.low:.3f} .. {served.high:.3f})"
    lines = [f"{served.engine}, {served.form}", f"acceptance length {length}{bounds}", f"  {served.what_converted}"]
    if served.per_position:
        lines.append("per position " + " ".join(f"{rate:.3f}" for rate in served.per_position))
    for name in ("rounds", "accepted", "proposed"):
        if getattr(served, name) is not None:
            lines.append(f"{name} {getattr(served, name)}")
    return "\n".join([*lines, *(f"note: {note}" for note in served.notes)])


def _measured(args: argparse.Namespace) -> int:
    missing = [f"--{name}" for name in ("target", "draft", "prompts") if getattr(args, name) is None]
    if missing:
        raise InputError(f"{', '.join(missing)} is missing: give a target, a draft head and prompts, or --from-log")
    for name in ("new_tokens", "depth"):
        if getattr(args, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} {getattr(args, name)}: at least 1")
    if args.loop_prompts < 0:
        raise InputError(f"--loop-prompts {args.loop_prompts}: 0 for none, or a number of prompts")
    if args.write_golden is not None and not args.table:
        raise InputError("--write-golden needs --table: a golden knows what each fault costs")
    for option in ("json", "html", "write_golden"):
        _require_place(f"--{option.replace('_', '-')}", getattr(args, option))
    golden = None if args.gate is None else read_golden(args.gate)
    pair = load_pair(args, new_tokens=args.new_tokens)
    identity = pair.identity()
    if golden is not None:
        check_settings(golden, identity, args.depth, args.new_tokens)
    from specalign.acceptance.report import format_json, format_measured, write_html

    measured = _table(args, pair)
    if args.write_golden is not None:
        write_golden(golden_of(measured.table, identity), args.write_golden)
    if args.html is not None:
        write_html(measured, args.html)
    verdict = None if golden is None else judge(golden, measured.table.counts)
    code = 0 if measured.ok and (verdict is None or verdict.ok) else 1
    if args.json is not None and str(args.json) == "-":
        sys.stdout.write(format_json(measured))
        if verdict is not None:
            print(format_verdict(verdict), file=sys.stderr)
        return code
    if args.json is not None:
        write_text_atomically(format_json(measured), args.json)
    print(format_measured(measured))
    if args.html is not None:
        print(f"report: {args.html}")
    if verdict is not None:
        print(format_verdict(verdict))
    return code


def _require_place(option: str, path: Path | None) -> None:
    """Raises `InputError` for a file that cannot be written: told before minutes of measuring, not after."""
    if path is None or (option == "--json" and str(path) == "-"):
        return
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError(f"{option} {shown(path)}: cannot be written: give a file in a folder that is there and may be written")


def _table(args: argparse.Namespace, pair: Pair) -> Measured:
    from specalign.acceptance.report import Measured
    from specalign.speculate.table import Settings

    settings = Settings(args.depth, args.new_tokens, args.loop_prompts, only_right=not args.table)
    begin = time.monotonic()
    with progress_line("measuring", "prompts") as progress:
        table = measure_pair(pair, settings, convention=parse_convention(args.convention), progress=progress)
    prompts = f"{described(args.prompts)}, {len(pair.tokens)} prompts"
    return Measured(table, *pair.names, prompts, pair.environment, time.monotonic() - begin)

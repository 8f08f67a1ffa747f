"""`specalign compare`: two dumps, and where they differ first."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from specalign.cli.progress import progress_line
from specalign.compare.coverage import Expect
from specalign.compare.declared import read_declared
from specalign.compare.layerwise import compare_dumps
from specalign.compare.modes import parse_mode
from specalign.compare.report import format_json, format_text, write_html
from specalign.compare.result import CompareReport
from specalign.compare.selection import parse_selection
from specalign.dump.opening import open_dump
from specalign.layer_ids.files import InputError, quoted
from specalign.layer_ids.rewrite import write_text_atomically

EXIT_CODES: Final = "0: everything that was asked for was compared and is equal; 1: it is not; 2: unusable input"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `specalign compare`."""
    parser.epilog = f"Exit codes: {EXIT_CODES}."
    parser.add_argument("a", type=Path, metavar="A", help="a dump: a folder of specalign, SGLang, slime, or safetensors files")
    parser.add_argument("b", type=Path, metavar="B", help="the other one")
    parser.add_argument("--layers", default="", metavar="LIST", help="0-5,9 and the words embedding, post_norm, logits, logprobs")
    parser.add_argument("--mode", default="bits", metavar="MODE", help="bits (default), ulp:N, abs:X or rel:X")
    parser.add_argument(
        "--expect-rows", default="both", metavar="WHICH", help="rows that must be compared: both (default), a, b, or a number"
    )
    parser.add_argument("--declare-missing", type=Path, metavar="FILE", help="known gaps, TOML: [[missing]] with side and reason")
    parser.add_argument("--allow-unfinished", action="store_true", help="take dumps without an end mark: what is there is whole")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write specalign.compare/1; - is standard output, without the text"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page that needs no network")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default 1)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare, print, write."""
    selection, mode, expect = parse_selection(args.layers), parse_mode(args.mode), _expect(args.expect_rows)
    declared = read_declared(args.declare_missing) if args.declare_missing else ()
    if args.jobs < 1:
        raise InputError(f"--jobs {args.jobs}: at least one process is needed")
    if args.a.resolve() == args.b.resolve():
        raise InputError(f"{args.a} and {args.b} are one dump, which equals itself; give two")
    a, b = open_dump(args.a), open_dump(args.b)
    try:
        with progress_line("comparing", "rows") as progress:
            report = compare_dumps(
                a,
                b,
                selection=selection,
                mode=mode,
                expect=expect,
                declared=declared,
                jobs=args.jobs,
                allow_unfinished=args.allow_unfinished,
                progress=progress if sys.stderr.isatty() else None,
            )
    except ValueError as error:
        raise error if isinstance(error, InputError) else InputError(str(error)) from None
    _write(report, args)
    return 0 if report.ok else 1


def _write(report: CompareReport, args: argparse.Namespace) -> None:
    if args.html is not None:
        write_html(report, args.html)
    if args.json is not None and str(args.json) == "-":
        sys.stdout.write(format_json(report))
        return
    if args.json is not None:
        try:
            write_text_atomically(format_json(report), args.json)
        except InputError as error:
            raise InputError(f"--json {args.json} cannot be written: {error}") from None
    print(format_text(report))
    if args.html is not None:
        print(f"\nreport: {args.html}")


def _expect(text: str) -> Expect:
    match text:
        case "both" | "a" | "b":
            return text
        case _ if text.isascii() and text.isdigit() and len(text) < 19:
            return int(text)
    raise InputError(f"--expect-rows {quoted(text)} is neither both, a, b, nor a number of rows")

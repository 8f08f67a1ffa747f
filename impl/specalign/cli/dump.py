"""`specalign dump inspect|validate|convert`: layerwise dumps on disk."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from specalign.cli.progress import progress_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of all three."""
    actions = parser.add_subparsers(dest="action", required=True)
    inspect = actions.add_parser("inspect", help="who wrote it, and which ranks, passes, rows, requests and tensors it holds")
    inspect.add_argument("dump", type=Path, metavar="DUMP", help="a dump of our own or of any format that is read")
    inspect.add_argument("--reader", metavar="NAME", help="read it as this format, where it could be two")
    inspect.add_argument("--json", action="store_true", help="print specalign.dump.inspect/1")
    inspect.set_defaults(run=run_inspect)
    check = actions.add_parser("validate", help="is a dump of our own whole and undamaged? Reads every byte; exit 1 if not")
    check.add_argument("dump", type=Path, metavar="DUMP", help="the folder that holds manifest.json")
    check.add_argument("--json", action="store_true", help="print the problems as JSON")
    check.set_defaults(run=run_validate)
    convert = actions.add_parser("convert", help="make a dump of our own out of any that is read")
    convert.add_argument("dump", type=Path, metavar="DUMP", help="the dump to read")
    convert.add_argument("out", type=Path, metavar="OUT", help="the folder of the new dump")
    convert.add_argument("--reader", metavar="NAME", help="read it as this format, where it could be two")
    convert.add_argument("--fingerprint", action="store_true", help="store 16 bytes a row in place of each tensor")
    convert.add_argument("--keys", metavar="KEY,KEY,…", help="only these tensors: boundary.3,post_norm; default: all")
    convert.set_defaults(run=run_convert)


def run_inspect(args: argparse.Namespace) -> int:
    """Print the summary: 0, or 2 for what cannot be read."""
    from specalign.dump.opening import open_dump
    from specalign.dump.summary import summarize

    # A dump in which something is missing is what one wants to look into.
    dump = open_dump(args.dump, partial=True, reader=args.reader)
    with progress_line("reading", "passes") as progress:
        summary = summarize(dump, progress=progress)
    print(json.dumps(summary.to_json(), indent=2) if args.json else summary.format())
    return 0


def run_validate(args: argparse.Namespace) -> int:
    """Print the report: 0 whole, 1 not, 2 nothing there."""
    from specalign.dump.validate import validate
    from specalign.layer_ids.files import list_names

    list_names(args.dump)  # no such folder is an error of usage, not of the dump
    with progress_line("validating", "passes") as progress:
        report = validate(args.dump, progress=progress)
    plain = {"schema": "specalign.dump.validate/1", "ok": report.ok, **dataclasses.asdict(report), "folder": str(report.folder)}
    print(json.dumps(plain, indent=2) if args.json else report.format())
    return 0 if report.ok else 1


def run_convert(args: argparse.Namespace) -> int:
    """Convert, and print what became of it: 0, or 2 for what cannot be read or written."""
    from specalign.dump.convert import convert
    from specalign.dump.opening import open_dump

    keys = None if args.keys is None else [key for key in args.keys.split(",") if key]
    with progress_line("converting", "passes") as progress:
        dump = open_dump(args.dump, reader=args.reader)
        passes = convert(dump, args.out, fingerprint=args.fingerprint, keys=keys, progress=progress)
    print(f"{args.out}: {passes} passes; look into it with: specalign dump inspect {args.out}")
    return 0

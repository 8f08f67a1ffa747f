"""`specalign golden list|diff|prune|merge`: the goldens of a repository."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specalign.golden.usage import Usage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of all four."""
    actions = parser.add_subparsers(dest="action", required=True)
    listing = actions.add_parser("list", help="every golden below a folder: whose, for which architecture, what it holds")
    listing.add_argument("folder", type=Path, nargs="?", default=Path(), metavar="FOLDER", help="default: here")
    _add_json(listing, "specalign.golden-list/1")
    listing.set_defaults(run=run_list)
    diff = actions.add_parser(
        "diff", help="two goldens, or two folders of them: what changed, by how much; exit 1 if anything did"
    )
    diff.add_argument("old", type=Path, metavar="OLD", help="a golden, or a folder")
    diff.add_argument("new", type=Path, metavar="NEW", help="the same of the other state")
    diff.add_argument("--mode", default="bits", metavar="MODE", help="bits (default), ulp:N, abs:X or rel:X")
    _add_json(diff, "specalign.golden-diff/1")
    diff.set_defaults(run=run_diff)
    merging = actions.add_parser(
        "merge", help="usage records of shards as one: are goldens unused? exit 1 if so, 2 if nobody knows"
    )
    merging.add_argument("records", type=Path, nargs="+", metavar="RECORD", help="golden-usage-*.json, or folders that hold them")
    merging.add_argument("-o", "--out", type=Path, metavar="FOLDER", help="write the merged record there")
    merging.set_defaults(run=run_merge)
    prune = actions.add_parser("prune", help="remove goldens that no test uses any more, and what killed runs left")
    prune.add_argument("records", type=Path, nargs="+", metavar="RECORD", help="of a complete run, as for merge")
    prune.add_argument("--root", type=Path, default=Path(), metavar="DIR", help="pytest's rootdir (default: here)")
    prune.add_argument("--delete", action="store_true", help="do it; without this, say what would go")
    prune.set_defaults(run=run_prune)


def run_list(args: argparse.Namespace) -> int:
    """Print them: 0, 1 if one cannot be read, 2 if there is none."""
    from specalign.golden.catalog import entries, folders
    from specalign.golden.errors import GoldenError
    from specalign.golden.reports import format_list
    from specalign.layer_ids.files import list_names, shown

    list_names(args.folder)  # no such folder is an error, not an empty list
    found = [entry for folder in folders(args.folder) for entry in entries(folder)]
    if not found:
        raise GoldenError(f"{shown(args.folder)}: holds no golden")
    code = 1 if any(entry.document is None for entry in found) else 0
    if args.json is not None and not _write_json(args.json, format_list(args.folder, found)):
        return code
    for entry in found:
        if entry.document is None:
            print(f"{shown(entry.path)}\n    cannot be read: {entry.problem}")
            continue
        held = ", ".join(f"{t.stored} {t.dtype} {list(t.shape)}" for t in entry.document.tensors[:8])
        more = f", and {len(entry.document.tensors) - 8} more" if len(entry.document.tensors) > 8 else ""
        print(f"{shown(entry.path)}\n    {entry.document.key.text}")
        print(
            f"    {entry.document.environment.arch}, {entry.document.form}, {entry.size} bytes{': ' if held else ''}{held}{more}"
        )
    print(f"{_count(len(found), 'golden')}, {sum(entry.size for entry in found)} bytes")
    return code


def run_diff(args: argparse.Namespace) -> int:
    """Print what changed: 0 nothing, 1 something, 2 unusable input."""
    from specalign.compare.modes import parse_mode
    from specalign.golden.difference import diff_goldens
    from specalign.golden.reports import format_diff

    mode = parse_mode(args.mode)
    found = diff_goldens(args.old, args.new, mode)
    changed = [entry for entry in found if entry.state != "same"]
    if args.json is not None and not _write_json(args.json, format_diff(args.old, args.new, str(mode), found)):
        return 1 if changed else 0
    for entry in changed:
        print(entry.format())
    print(f"{_count(len(found), 'golden')}, {len(changed)} changed")
    return 1 if changed else 0


def run_merge(args: argparse.Namespace) -> int:
    """Print what the shards say together: 0 all goldens are used, 1 some are not, 2 nobody can tell."""
    from specalign.golden.usage import write_usage

    merged = _merged(args.records)
    if args.out is not None:
        _make_folder(args.out)
        print(write_usage(merged, args.out))
    for golden, tests in merged.shared.items():
        print(f"collision: {golden} was used by {' and '.join(tests)}")
    if merged.incomplete:
        print(_incomplete(merged))
        return 2
    seen = f"{_count(len(merged.collected), 'test')}, {_count(len(merged.present), 'golden')}"
    print(f"{seen}, {len(merged.unused)} unused")
    for golden in merged.unused:
        print(f"unused: {golden}")
    return 1 if merged.unused or merged.shared else 0


def run_prune(args: argparse.Namespace) -> int:
    """Remove, or say what would go: 0, or 2 where nobody can tell what is unused."""
    from specalign.golden.catalog import leftovers, paths_of, remove
    from specalign.golden.errors import GoldenError

    merged = _merged(args.records)
    if merged.incomplete:
        raise GoldenError(f"nothing was removed: {_incomplete(merged)}")
    paths = [path for golden in merged.unused for path in paths_of(golden, args.root)]
    if merged.unused and not paths:
        raise GoldenError(
            f"{merged.unused[0]} and the others are not below {args.root.resolve()}: give pytest's rootdir, --root DIR"
        )
    paths = sorted({*paths, *leftovers(args.root)})
    if args.delete:
        remove(paths)
    for path in paths:
        print(f"{'removed' if args.delete else 'would remove'}: {path}")
    print(f"{len(paths)} files and folders{'' if args.delete or not paths else '; remove them with --delete'}")
    return 0


def _merged(given: Sequence[Path]) -> Usage:
    from specalign.golden.errors import GoldenError
    from specalign.golden.usage import merge, read_usage
    from specalign.layer_ids.files import shown

    paths: list[Path] = []
    for path in given:
        inside = sorted(path.rglob("golden-usage-*.json")) if path.is_dir() else [path]
        if not inside:
            raise GoldenError(
                f"{shown(path)}: holds no golden-usage-*.json: run pytest with --specalign-artifacts, and give that folder"
            )
        paths += inside
    return merge(read_usage(path) for path in paths)


def _add_json(parser: argparse.ArgumentParser, schema: str) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help=f"write {schema}; - is standard output, without the text")


def _write_json(path: Path, text: str) -> bool:
    """Write it; whether the text for people is to follow. Raises `InputError`."""
    from specalign.layer_ids.rewrite import write_text_atomically

    if str(path) == "-":
        sys.stdout.write(text)
        return False
    write_text_atomically(text, path)
    return True


def _make_folder(folder: Path) -> None:
    from specalign.golden.errors import GoldenError
    from specalign.layer_ids.files import shown

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GoldenError(f"{shown(folder)}: cannot be made: {error.strerror or error}; give another folder") from error


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _incomplete(merged: Usage) -> str:
    return "nobody can tell which goldens are unused: " + "; ".join(merged.incomplete)

"""`specalign check DRAFT TARGET`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from specalign.cli.id_list import parse_ids
from specalign.layer_ids.conventions import Convention
from specalign.layer_ids.draft_config import KINDS
from specalign.layer_ids.files import InputError
from specalign.layer_ids.project import ProjectSettings, read_project_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.epilog = "Exit code: 0 clean or warnings only, 1 errors, 2 unusable input."
    where = "config file, folder, Hugging Face cache snapshot, or a repository id found in that cache"
    parser.add_argument("draft", metavar="DRAFT", help=f"the draft head: {where}")
    parser.add_argument("target", metavar="TARGET", help="the target, likewise")
    parser.add_argument(
        "--engine", action="append", default=[], metavar="NAME[==VERSION]", help="check this engine; repeatable; default: all"
    )
    parser.add_argument("--kind", choices=KINDS, help="what the head is served as, where the files do not show it")
    parser.add_argument(
        "--convention", choices=[c.value for c in Convention], help="what the ids mean: your word wins over guesses"
    )
    parser.add_argument("--flag-ids", metavar="ID,ID,…", help="the ids that you pass by the engine's own flag, where it has one")
    parser.add_argument("--pp-size", type=int, default=1, metavar="N", help="number of pipeline stages that serve the target")
    parser.add_argument(
        "--ignore", action="append", default=[], metavar="CODE[@ENGINE]", help="do not count this finding; repeatable"
    )
    parser.add_argument("--write-config", type=Path, metavar="OUT", help="write a draft config that one engine reads right")
    parser.add_argument("--format", choices=("text", "json", "github"), default="text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Check, print the report, and return its exit code."""
    from specalign.layer_ids.load import load_draft, load_target
    from specalign.layer_ids.preflight import check
    from specalign.layer_ids.report import as_json, format_github, format_text

    project = read_project_settings(_current_folder())
    loaded = load_draft(args.draft, kind=args.kind)
    target = load_target(args.target)
    try:
        report = check(
            loaded.spec,
            target,
            engines=args.engine or project.engines,
            convention=Convention(args.convention) if args.convention else None,
            flag_ids=parse_ids(args.flag_ids) if args.flag_ids is not None else None,
            pp_size=args.pp_size,
            ignore=_ignored(args.ignore, project),
        )
    except ValueError as error:
        raise InputError(str(error)) from None
    if args.format == "json":
        print(json.dumps(as_json(report), indent=2))
    elif args.format == "github":
        print(format_github(report, file=os.path.relpath(loaded.config)))
    else:
        print(format_text(report))
    if args.write_config is not None:
        _write_config(report, args.write_config)
    return report.exit_code


def _current_folder() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise InputError(f"the current folder cannot be used: {error.strerror or error}; change to another one") from None


def _ignored(codes: list[str], project: ProjectSettings) -> dict[str, str]:
    return {**project.ignore, **dict.fromkeys(codes, "--ignore on the command line")}


def _write_config(report: object, out: Path) -> None:
    from specalign.layer_ids.preflight import CheckReport
    from specalign.layer_ids.rewrite import rewritten_config, write_json_atomically

    if isinstance(report, CheckReport):
        changed, notes = rewritten_config(report)
        write_json_atomically(changed, out)
        for note in notes:
            print(f"specalign check: {out}: {note}", file=sys.stderr)

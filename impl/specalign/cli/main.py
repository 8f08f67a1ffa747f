"""Entry point of the command `specalign`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Final

VERBS: Final = {
    "check": "which states each engine would capture for a draft head, and what it would get wrong",
    "ids": "the states that bare layer ids name under every convention and engine",
    "engines": "the engine profiles: list them, or verify them against an engine's wheel",
    "dump": "a layerwise dump: look into it, validate it, or convert a foreign one",
    "compare": "two layerwise dumps: where they differ first, by how much, and why",
    "acceptance": "how many drafts of a head its target accepts, and what each silent fault would cost",
    "probe": "which reading of a head's layer ids fits its target, measured",
    "golden": "the goldens of a repository: list them, compare two states, find and remove unused ones",
    "lease": "run a command with GPUs that no other lease on this machine has",
    "doctor": "versions, GPUs, who leases and who uses them, and the locks",
}
"""Verb → help line; the module of the same name is imported only when the verb is used."""

USAGE_ERROR: Final = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run `specalign` and return its exit code: 0 fine, 1 errors found, 2 unusable input."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="specalign", description="Prove that two engines agree to the bit.")
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB")
    wanted = next((a for a in arguments if not a.startswith("-")), None)
    for verb, text in VERBS.items():
        sub = verbs.add_parser(verb, help=text, description=text[0].upper() + text[1:] + ".")
        if verb == wanted:
            importlib.import_module(f"specalign.cli.{verb}").add_arguments(sub)
    args = parser.parse_args(arguments)
    if args.version:
        from importlib.metadata import version  # slow to import, and wanted here only

        print(f"specalign {version('pytest-specalign')}")
        return 0
    if args.verb is None:
        parser.print_help()
        return USAGE_ERROR
    return _run(args)


def _run(args: argparse.Namespace) -> int:
    from specalign.layer_ids.engine_tables import EngineDataError
    from specalign.layer_ids.errors import LayerIdError
    from specalign.layer_ids.files import InputError

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 must not turn a report into a traceback
    try:
        code: int = args.run(args)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (InputError, EngineDataError, LayerIdError) as error:
        print(f"specalign {args.verb}: {error}", file=sys.stderr)
        return USAGE_ERROR
    except OSError as error:
        _discard_output()
        if not isinstance(error, BrokenPipeError):
            print(f"specalign {args.verb}: cannot write the report: {error.strerror or error}", file=sys.stderr)
        return USAGE_ERROR
    return code


def _discard_output() -> None:
    """Point standard output at nothing, so that the interpreter's last flush stays quiet."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())

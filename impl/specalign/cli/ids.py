"""`specalign ids 24,30,36 --num-layers 36`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from specalign.cli.id_list import parse_ids

if TYPE_CHECKING:
    from specalign.layer_ids.captured import Captured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    parser.add_argument("ids", metavar="ID,ID,…", help="the ids as the config has them, or `default`")
    parser.add_argument("--num-layers", "-n", type=int, required=True, metavar="N", help="number of layers of the target")
    parser.add_argument("--kind", choices=("eagle3", "dflash", "dspark"), default="eagle3")
    parser.add_argument("--family", metavar="NAME", help="target family, where the rule depends on it (gpt_oss, …)")
    parser.add_argument("--engine", action="append", default=[], metavar="NAME[==VERSION]", help="repeatable; default: all")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the states under every convention, rule and engine. Ids that no convention allows exit 2."""
    from specalign.layer_ids.convert import infer_convention
    from specalign.layer_ids.tables import format_table

    ids = None if args.ids == "default" else parse_ids(args.ids)
    why = "no ids: the default" if ids is None else infer_convention(ids, args.num_layers).why
    rows = [*_conventions(ids, args.num_layers), *_engines(args, ids)]
    if args.format == "json":
        print(json.dumps({"ids": ids, "num_layers": args.num_layers, "kind": args.kind, "why": why, "rows": rows}, indent=2))
        return 0
    print(f"{why}\n")
    print(format_table([("who", "rule", "states", "note"), *((r["who"], r["rule"], _text(r), r["note"]) for r in rows)]))
    return 0


def _text(row: dict[str, Any]) -> str:
    from specalign.layer_ids.conventions import format_states

    return format_states(row["states"]) if row["states"] is not None else "-"


def _conventions(ids: list[int] | None, n: int) -> Iterator[dict[str, Any]]:
    from specalign.layer_ids.conventions import Convention
    from specalign.layer_ids.convert import to_states
    from specalign.layer_ids.errors import LayerIdError

    for convention in Convention:
        row: dict[str, Any] = {"who": f"convention {convention.name}", "rule": convention.value, "states": None, "note": ""}
        try:
            row["states"] = _plain(to_states(ids, num_layers=n, convention=convention))
        except LayerIdError as error:
            row["note"] = str(error)
        yield row


def _engines(args: argparse.Namespace, ids: list[int] | None) -> Iterator[dict[str, Any]]:
    from specalign.layer_ids.captured import capture_ids
    from specalign.layer_ids.engine_tables import EngineDataError
    from specalign.layer_ids.engines import load_engines

    table = load_engines()
    if args.family is not None and args.family not in table.families:
        raise EngineDataError(f"no target family is called {args.family!r}: there are {', '.join(table.families)}")
    for label in args.engine or table.default_labels():
        profile = table.profile(label, kind=args.kind, family=args.family, architecture="")
        if profile.capture is None:
            continue
        place = next(iter(profile.capture.ids_from), None)
        given = None if ids is None or place is None else tuple(ids)
        captured = capture_ids(profile.capture, given, args.num_layers, place=place)
        supported = profile.capture.supported
        states = _plain(captured.states) if supported and not captured.error else None
        note = _note(captured) if supported else "no capture on this family"
        if not supported and args.family is None:
            note = "depends on the target: say --family"
        if ids is not None and place is None and supported:
            note = "reads no ids: always the default"
        yield {"who": profile.label, "rule": profile.capture.rule, "states": states, "note": note}


def _note(captured: Captured) -> str:
    return captured.error or (f"never captured: {_plain(captured.lost)}" if captured.lost else "")


def _plain(states: Any) -> list[int | str]:
    return [state if isinstance(state, int) else str(state) for state in states]

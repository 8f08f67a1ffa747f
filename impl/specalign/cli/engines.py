"""`specalign engines list` and `specalign engines verify --wheel FILE`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of both."""
    actions = parser.add_subparsers(dest="action", required=True)
    show = actions.add_parser("list", help="the engines, their versions, and the rule for every kind and target family")
    show.add_argument("--engine", metavar="NAME[==VERSION]", help="one engine in full; default: an overview of all")
    show.add_argument("--format", choices=("text", "json"), default="text")
    show.set_defaults(run=run_list)
    verify = actions.add_parser("verify", help="run the layer-id setters of an SGLang wheel on fakes; exit 1 where they differ")
    verify.add_argument("--wheel", type=Path, required=True, action="append", metavar="FILE", help="sglang-*.whl; repeatable")
    verify.add_argument("--num-layers", type=int, default=36, metavar="N", help="layers of the fakes (default 36)")
    verify.add_argument("--timeout", type=float, default=120.0, metavar="S", help="seconds for the subprocess (default 120)")
    verify.set_defaults(run=run_verify)


def run_list(args: argparse.Namespace) -> int:
    """Print the overview, or one engine's rows."""
    from specalign.layer_ids.engines import load_engines
    from specalign.layer_ids.tables import format_table

    table = load_engines()
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    if args.engine is None:
        head = ("engine", "role", "versions checked by default", "rows")
        rows = [
            (e.name, e.role, ", ".join(v for v in e.checked if v) or "-", str(sum(c.engine == e.name for c in table.captures)))
            for e in table.engines.values()
        ]
    else:
        label = table.profile(args.engine, kind="eagle3", family=None, architecture="")
        head = ("kind", "families", "rule", "reach", "beyond", "order", "duplicates", "ids from", "grade")
        rows = [
            (
                "/".join(c.kinds),
                ", ".join(c.families[:6]) + (" …" if len(c.families) > 6 else ""),
                c.rule if c.supported else "unsupported",
                c.reach,
                c.unreachable,
                c.order,
                c.duplicates,
                ", ".join(c.ids_from) or "-",
                c.grade,
            )
            for c in table.captures
            if c.engine == label.engine and table.covers(c, label.profiled) and not c.inner
        ]
    if args.format == "json":
        print(json.dumps([dict(zip(head, row, strict=True)) for row in rows], indent=2))
    else:
        print(format_table([head, *rows]))
    return 0


def run_verify(args: argparse.Namespace) -> int:
    """Hold every wheel against the profiles: 0 no difference, 1 drift, 2 a wheel that cannot be read."""
    from specalign.integrations.sglang_drift import compare_setters
    from specalign.integrations.sglang_setters import SetterRunError, run_setters
    from specalign.layer_ids.engines import load_engines

    code = 0
    for wheel in args.wheel:
        try:
            report = run_setters(wheel, num_layers=args.num_layers, timeout=args.timeout)
        except SetterRunError as error:
            print(f"specalign engines verify: {error}", file=sys.stderr)
            return 2
        drift = compare_setters(report, load_engines())
        print(drift.format())
        code = max(code, 0 if drift.ok else 1)
    return code

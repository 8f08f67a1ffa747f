"""How fast a result is held against its golden.

    python benchmarks/golden.py [--record] [--folder DIR] [--small]

    values        1 GB of FP16, 24 tensors [7232, 2880], against a golden of values on warm files, by bits: at least 1 GB/s of the
                  result's bytes on one core, and torch is not imported. Every element is read on both sides, and looked at for
                  non-finite values
    tolerance     the same by ulp:1, which reads the golden once more for its checksums; no floor
    fingerprint   the same against a golden of fingerprints; no floor

Each is measured in a process of its own, from opening the golden to the report.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "impl")]  # runs from a bare checkout too

import numpy as np  # noqa: E402  # after the path is set

from specalign.compare.modes import parse_mode  # noqa: E402
from specalign.golden.check import check_tensors, read_result  # noqa: E402
from specalign.golden.environment import named_environment  # noqa: E402
from specalign.golden.files import Place, read_golden, write_golden  # noqa: E402
from specalign.golden.keys import Key  # noqa: E402

RESULT = Path(__file__).parent / "results" / "golden.json"
SELF = [sys.executable, __file__, "--child"]
FLOOR = 1.0
KEY = Key("test_layers.py", "", "test_layers", None)


def result(layers: int, rows: int, width: int) -> dict[str, Any]:
    """Finite FP16 values that differ from layer to layer: slices of one table of noise, copied."""
    table = np.random.default_rng(0).integers(0, 0x4000, rows * width + 64 * layers, dtype=np.uint16)
    return {
        f"layer {n}": table[64 * n : 64 * n + rows * width].view(np.float16).reshape(rows, width).copy() for n in range(layers)
    }


def child(arguments: Sequence[str]) -> int:
    """Write both goldens, or time one check: JSON on standard output."""
    what, folder, shape = arguments[0], Path(arguments[1]), [int(part) for part in arguments[2:5]]
    tensors, environment = result(*shape), named_environment("cpu")
    if what == "write":
        for form in ("values", "fingerprint"):
            write_golden(Place(folder / form, KEY.stem, "cpu"), KEY, environment, read_result("", tensors, None), form)  # type: ignore[arg-type]
        return 0
    path, mode = Place(folder / arguments[5], KEY.stem, "cpu").tensors, parse_mode(arguments[6])
    path.read_bytes()  # warm
    begin, spent = time.perf_counter(), time.process_time()
    report = check_tensors(read_golden(path), read_result("", tensors, None), environment, mode)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - spent
    if not report.ok or report.compared != shape[0] or "torch" in sys.modules:
        raise SystemExit(f"the check did not do what is measured: {report.format()}, torch imported: {'torch' in sys.modules}")
    size = sum(tensor.nbytes for tensor in tensors.values())
    tensors["layer 0"].view(np.uint16)[-1, -1] ^= 1
    if check_tensors(read_golden(path), read_result("", tensors, None), environment).ok:
        raise SystemExit("one flipped bit goes unnoticed, so the figure means nothing")
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "bytes": size, "gb_per_second": size / seconds / 1e9}))
    return 0


def measure(folder: Path, shape: Sequence[int], form: str, mode: str, runs: int = 3) -> dict[str, Any]:
    """The fastest of several runs."""
    command = [*SELF, "check", str(folder), *map(str, shape), form, mode]
    found = [json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(runs)]
    return dict(min(found, key=lambda item: item["seconds"]))


def main() -> int:
    """Measure, print, and with --record keep the figures."""
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--small", action="store_true", help="tiny tensors: does the benchmark run at all?")
    parser.add_argument("--folder", type=Path, help="where the goldens go for a while: about 1 GB")
    args = parser.parse_args()
    shape = (2, 64, 256) if args.small else (24, 7232, 2880)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        subprocess.run([*SELF, "write", name, *map(str, shape)], check=True)
        results = {
            "values": measure(folder, shape, "values", "bits"),
            "tolerance": measure(folder, shape, "values", "ulp:1"),
            "fingerprint": measure(folder, shape, "fingerprint", "bits"),
        }
    for what, found in results.items():
        floor = f">= {FLOOR:.2f}" if what == "values" else "none"
        reached = what != "values" or found["gb_per_second"] >= FLOOR
        print(f"{what + ', GB/s':<28}{found['gb_per_second']:>10.2f}   {floor:<12}{'reached' if reached else 'MISSED'}")
    environment = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
    }
    print(f"{environment}")
    if args.record:
        document = {"date": datetime.date.today().isoformat(), "environment": environment, **results}
        RESULT.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

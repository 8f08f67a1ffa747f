"""Two small dumps of one model: `train` packs two requests into one forward, `rollout` prefills and decodes them.

    python examples/two_dumps.py OUT [--right]

The rollout's hook is off by one: it stores what block b + 1 returned as boundary b. `--right` makes it right. The model is a
residual stream of random vectors in bf16, so that numpy is all it takes; a real model is recorded by `specalign.recorder`.
"""

from __future__ import annotations

import argparse
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "impl")]  # runs from a bare checkout too

import numpy as np  # noqa: E402  # after the path is set
from numpy.typing import NDArray  # noqa: E402

from specalign.dump import DumpWriter, Manifest, RawTensor, TensorSpec, make_rows  # noqa: E402
from specalign.dump.keys import RowKind, boundary_key  # noqa: E402

BLOCKS, WIDTH, PROMPT, GENERATED = 6, 64, 12, 8
REQUESTS = {"chat-1": "the quick brown fox jumps over the lazy dog"[:20], "chat-2": "she sells sea shells by the sea shore"[:20]}

Row = tuple[str, int, int]
"""Request, position, kind."""


def noise(prefix: str, what: object) -> NDArray[np.float32]:
    """What the model makes of the tokens up to a position; it depends on nothing else."""
    return np.random.default_rng(zlib.crc32(f"{what}:{prefix}".encode())).normal(size=WIDTH).astype(np.float32)


def stream(prefix: str) -> list[NDArray[np.float32]]:
    """Boundaries 0 to BLOCKS of one row, each rounded to bf16."""
    states = [bf16(noise(prefix, "embedding"))]
    for block in range(BLOCKS):
        states.append(bf16(states[-1] + noise(prefix, block)))
    return states


def bf16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rounded to 16 bits, to nearest, ties to even."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def record(folder: Path, producer: str, forwards: Sequence[Sequence[Row]], *, shift: int = 0) -> None:
    """Write the dump of an engine that ran these forwards and stores boundary b + shift as boundary b."""
    manifest = Manifest(producer, device="cpu", arch="cpu", model={"num_layers": BLOCKS, "hidden_size": WIDTH})
    with DumpWriter(folder, manifest) as writer:
        for forward in forwards:
            streams = [stream(REQUESTS[request][: position + 1]) for request, position, _ in forward]
            tensors = []
            for boundary in range(1, BLOCKS):
                states = np.stack([states[boundary + shift] for states in streams])
                data: NDArray[Any] = (states.view(np.uint32) >> 16).astype(np.uint16)
                tensors.append(RawTensor(TensorSpec(boundary_key(boundary), "BF16", data.shape, site="post-block"), data))
            writer.write_pass(rows_of(forward), tensors)


def rows_of(forward: Sequence[Row]) -> Any:
    """Which row is what."""
    names = list(dict.fromkeys(request for request, *_ in forward))
    return make_rows(
        [ord(REQUESTS[request][position]) for request, position, _ in forward],
        [position for _, position, _ in forward],
        [names.index(request) for request, *_ in forward],
        [kind for *_, kind in forward],
        names,
    )


def main() -> int:
    """Write OUT/train and OUT/rollout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--right", action="store_true", help="a rollout that stores what it says")
    args = parser.parse_args()
    end = PROMPT + GENERATED
    packed = [(request, position, RowKind.PREFILL) for request in REQUESTS for position in range(end)]
    prompts = [(request, position, RowKind.PREFILL) for request in REQUESTS for position in range(PROMPT)]
    # The last token that was sampled is never run by the engine, so the rollout has one row less of each request.
    steps = [[(request, position, RowKind.DECODE) for request in REQUESTS] for position in range(PROMPT, end - 1)]
    record(args.out / "train", "the trainer of this example", [packed])
    record(args.out / "rollout", "the engine of this example", [prompts, *steps], shift=0 if args.right else 1)
    print(f"wrote {args.out / 'train'} and {args.out / 'rollout'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

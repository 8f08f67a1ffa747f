"""One of the processes of test_fight.py: takes leases for ever, and looks whether it is alone on each GPU.

    python fighter.py FOLDER COUNT SEED

Under each lease it writes its own name into a witness file of each GPU, reads it back many times, and clears it. A line on standard
output tells of each lease: `COUNT SECONDS_WAITED NAMES_FOUND…`. A name that it did not clear is that of a process that was killed,
or a fault; the test knows which.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from specalign.leases import Inventory, LockFolder, Pool, Request
from tests.unit.leases.made_up import gpu

LOOKS = 200
WIDTH = 12
GPUS = 4


def fight(folder: Path, count: int, seed: int) -> None:
    me = str(os.getpid())
    chance = random.Random(seed)
    mine = Pool(lambda: Inventory(tuple(gpu(index) for index in range(GPUS)), "hook"), LockFolder(folder / "locks"), {})
    while True:
        asked = time.monotonic()
        with mine.lease(Request(count), timeout=120) as lease:
            waited = time.monotonic() - asked
            witnesses = [os.open(folder / f"{device.index}.witness", os.O_RDWR | os.O_CREAT) for device in lease.devices]
            found = [_read(witness) for witness in witnesses]
            _write(witnesses, me)
            os.write(1, f"{count} {waited:.4f} {' '.join(found)}\n".encode())
            for _ in range(chance.randrange(LOOKS)):
                if any(_read(witness) != me for witness in witnesses):
                    os.write(1, f"two holders: {me} reads {[_read(witness) for witness in witnesses]}\n".encode())
            _write(witnesses, "none")
            for witness in witnesses:
                os.close(witness)


def _read(witness: int) -> str:
    return os.pread(witness, WIDTH, 0).decode().strip() or "none"


def _write(witnesses: list[int], name: str) -> None:
    """In one call and at one length, so that a kill leaves the old name or the new one."""
    for witness in witnesses:
        os.pwrite(witness, name.ljust(WIDTH).encode(), 0)


if __name__ == "__main__":
    fight(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

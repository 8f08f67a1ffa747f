"""Eight processes fight for four GPUs and are killed at random: never two holders, no GPU lost, nobody starves.

`SPECALIGN_LEASE_FIGHT_SECONDS` makes it longer (60 before a release).
"""

from __future__ import annotations

import collections
import os
import random
import selectors
import subprocess
import sys
import time
from pathlib import Path

from specalign.leases import Inventory, LockFolder, Pool, Request
from tests.unit.leases.fighter import GPUS
from tests.unit.leases.made_up import gpu

ROOT = Path(__file__).parents[3]
SECONDS = float(os.environ.get("SPECALIGN_LEASE_FIGHT_SECONDS") or 8)
PROCESSES = 8
COUNTS = (1, 1, 1, 1, 2, 2, 2, 4)
LONGEST_WAIT = 20.0
LEASES_PER_KILL = 25


class Fight:
    """The processes, what they said, and which of them were killed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.chance = random.Random(seed)
        self.fighters: list[subprocess.Popen[bytes]] = []
        self.names = {"none"}
        self.killed: set[str] = set()
        self.leases: collections.Counter[int] = collections.Counter()
        self.longest: dict[int, float] = {}
        self.faults: list[str] = []
        self.selector = selectors.DefaultSelector()
        for count in COUNTS:
            self.start(count)

    def start(self, count: int) -> None:
        command = [
            sys.executable,
            str(Path(__file__).with_name("fighter.py")),
            str(self.folder),
            str(count),
            str(self.chance.random())[2:9],
        ]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "impl"), str(ROOT)])}
        fighter = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE)
        self.fighters.append(fighter)
        assert fighter.stdout is not None
        self.selector.register(fighter.stdout, selectors.EVENT_READ, (fighter, count))

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        until_kill = LEASES_PER_KILL
        while time.monotonic() < end:
            for key, _ in self.selector.select(timeout=1):
                fighter, count = key.data
                line = fighter.stdout.readline().decode()
                self.judge(fighter, line)
                until_kill -= 1
                if until_kill <= 0 and line:
                    until_kill = self.chance.randrange(2 * LEASES_PER_KILL)
                    self.kill(fighter, count)
                    self.start(count)

    def judge(self, fighter: subprocess.Popen[bytes], line: str) -> None:
        """Names of killed processes are looked up when all is over: the kill may be known a moment after its witness is read."""
        count, _, rest = line.partition(" ")
        if not count.isdecimal():
            self.faults.append(f"pid {fighter.pid}: {line.strip() or 'ended by itself'}")
            self.selector.unregister(fighter.stdout) if not line and fighter.stdout else None
            return
        waited, *found = rest.split()
        self.leases[int(count)] += 1
        self.longest[int(count)] = max(self.longest.get(int(count), 0.0), float(waited))
        self.names.update(found)

    def kill(self, fighter: subprocess.Popen[bytes], count: int) -> None:
        """Just after it said that it has a lease: it mostly still has it."""
        assert fighter.stdout is not None
        self.killed.add(str(fighter.pid))
        fighter.kill()
        self.selector.unregister(fighter.stdout)
        for line in fighter.stdout.read().decode().splitlines(keepends=True):
            if line.endswith("\n"):
                self.judge(fighter, line)
        fighter.stdout.close()
        fighter.wait()

    def stop(self) -> None:
        for key in list(self.selector.get_map().values()):
            self.kill(*key.data)
        self.selector.close()


def test_eight_processes_fight_for_four_gpus(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    fight = Fight(tmp_path, seed)
    try:
        fight.run(SECONDS)
    finally:
        fight.stop()
    said = f"seed {seed}, leases {dict(fight.leases)}, longest wait {fight.longest}, {len(fight.killed)} killed"
    print(said)
    assert not fight.faults, (said, fight.faults[:5])
    strangers = fight.names - fight.killed - {"none"}
    assert not strangers, f"{said}: GPUs were taken while processes that nobody killed held them: {sorted(strangers)}"
    assert len(fight.killed) > PROCESSES, said
    assert fight.leases.keys() == set(COUNTS), said
    assert max(fight.longest.values()) < LONGEST_WAIT, said
    mine = Pool(lambda: Inventory(tuple(gpu(index) for index in range(GPUS)), "hook"), LockFolder(tmp_path / "locks"), {})
    with mine.lease(Request(GPUS), timeout=60) as lease:
        assert len(lease.devices) == GPUS, "no GPU was lost"

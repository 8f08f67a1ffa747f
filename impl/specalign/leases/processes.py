"""Who is whose child, out of /proc: for finding a test's own leftovers on a GPU. Elsewhere than on Linux nothing is known."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")


def parents() -> dict[int, int]:
    """pid → parent's pid, of every process that can be seen from here."""
    found: dict[int, int] = {}
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text(errors="replace")
            except OSError:  # gone meanwhile
                continue
            found[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])  # the name before it may hold spaces and brackets
    return found


def descendants(pid: int) -> frozenset[int]:
    """Children, their children, and so on."""
    parent_of = parents()
    found: set[int] = {pid}
    grew = True
    while grew:
        more = {child for child, parent in parent_of.items() if parent in found} - found
        grew = bool(more)
        found |= more
    return frozenset(found - {pid})


def children(pid: int) -> frozenset[int]:
    """Direct children only."""
    return frozenset(child for child, parent in parents().items() if parent == pid)

"""Fails unless a tag, the version, the changelog and what was built agree.

    python3 check_release.py TAG --dist FOLDER [--root DIR]

TAG is `v` and the version in pyproject.toml; CHANGELOG.md has that version with a date; FOLDER holds one wheel and one source
archive of it and nothing else. An empty TAG, as in a trial run without one, leaves out the tag and the date.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tag")
    parser.add_argument("--dist", type=Path, required=True)
    parser.add_argument("--root", type=Path, default=Path())
    args = parser.parse_args()
    project = tomllib.loads((args.root / "pyproject.toml").read_text("utf-8"))["project"]
    problems = list(check_files(args.dist, project["name"].replace("-", "_"), project["version"]))
    if args.tag:
        problems += check_tag(args.tag, project["version"], (args.root / "CHANGELOG.md").read_text("utf-8"))
    for problem in problems:
        print(f"::error::release: {problem}")
    if not problems:
        print(f"{project['name']} {project['version']}: " + ("ready" if args.tag else "built; no tag, so nothing is released"))
    return 1 if problems else 0


def check_tag(tag: str, version: str, changelog: str) -> Iterator[str]:
    if tag != f"v{version}":
        yield f"the tag is {tag}, the version in pyproject.toml {version}: expected v{version}"
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d{{2}}-\d{{2}}$", changelog, re.MULTILINE):
        yield f"CHANGELOG.md has no line `## [{version}] - YYYY-MM-DD`"


def check_files(dist: Path, name: str, version: str) -> Iterator[str]:
    expected = {f"{name}-{version}-py3-none-any.whl", f"{name}-{version}.tar.gz"}
    found = {path.name for path in dist.iterdir()} if dist.is_dir() else set()
    if found != expected:
        yield f"{dist} holds {', '.join(sorted(found)) or 'nothing'}: expected {', '.join(sorted(expected))}"


if __name__ == "__main__":
    sys.exit(main())

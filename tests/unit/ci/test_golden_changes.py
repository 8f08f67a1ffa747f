"""Goldens travel from a GPU machine to a pull request: goldens and nothing else, and every change is described."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / ".github" / "scripts" / "golden_changes.py"

DIFF = """\
different: tests/gpu/__golden__/test_a.sm90.safetensors (00112233445566aa → ffeeddccbbaa9988, at most 1234 ulp)
    layer.3: 2 of 4 rows differ, first at [1, 7]
    0x3f80 → 0x3f81
different: tests/__golden__/fingerprint (b).cpu.json (01 → 02)
only new: x/__golden__/new.sm90.json (none → abcdef0123456789)
7 goldens, 3 changed
"""


def _run(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _tree(top: Path, *files: str) -> Path:
    for name in files:
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(name)
    return top


def _files(top: Path) -> list[str]:
    return sorted(path.relative_to(top).as_posix() for path in top.rglob("*") if path.is_file())


def test_goldens_are_copied_and_nothing_else(tmp_path: Path) -> None:
    goldens = ["__golden__/a", "tests/gpu/__golden__/test_x.py/.hidden/b.sm90.json", "tests/gpu/__golden__/c"]
    others = ["tests/gpu/test_x.py", ".github/workflows/ci.yml", ".git/__golden__/hooks", "golden/d", "x__golden__/e"]
    source = _tree(tmp_path / "from", *goldens, *others)
    target = _tree(tmp_path / "to", "tests/gpu/__golden__/c", "tests/gpu/test_x.py")
    (target / "tests/gpu/__golden__/c").write_text("old")
    ran = _run("copy", source, target)
    assert (ran.returncode, ran.stdout) == (0, f"3 files of goldens copied to {target}\n")
    assert _files(target) == sorted([*goldens, "tests/gpu/test_x.py"])
    assert (target / "tests/gpu/__golden__/c").read_text() == "tests/gpu/__golden__/c"


@pytest.mark.parametrize("kind", ["link to a file", "link to a folder", "pipe"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    source = _tree(tmp_path / "from", "t/__golden__/a")
    secret = _tree(tmp_path / "outside", "secret")
    place = source / "t" / "__golden__" / "b"
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(secret if kind == "link to a folder" else secret / "secret")
    ran = _run("copy", source, tmp_path / "to")
    assert ran.returncode == 1
    assert f"{place}: a golden is a regular file" in ran.stderr
    assert "secret" not in "".join(_files(tmp_path / "to"))


def test_a_link_in_the_checkout_leads_nowhere(tmp_path: Path) -> None:
    """A link `t/__golden__` → `.github` would make a golden of a workflow."""
    source = _tree(tmp_path / "from", "t/__golden__/gpu.yml")
    target = _tree(tmp_path / "to", ".github/gpu.yml", "t/test_x.py")
    (target / "t" / "__golden__").symlink_to(target / ".github")
    ran = _run("copy", source, target)
    assert ran.returncode == 1
    assert "a link leads out of the goldens" in ran.stderr
    assert (target / ".github" / "gpu.yml").read_text() == ".github/gpu.yml"


def test_no_folder_to_copy_from_fails(tmp_path: Path) -> None:
    assert _run("copy", tmp_path / "nothing", tmp_path / "to").returncode == 1


def test_every_change_is_described(tmp_path: Path) -> None:
    (tmp_path / "diff").write_text(DIFF)
    ran = _run(
        "describe", tmp_path / "diff", "--why", "new `kernel` | faster", "--run", "https://x/1", "--output", tmp_path / "out"
    )
    assert ran.returncode == 0, ran.stderr
    assert "Goldens recorded anew by https://x/1." in ran.stdout
    assert "Why: `new 'kernel' \\| faster`" in ran.stdout
    rows = [line for line in ran.stdout.splitlines() if line.startswith("| `")]
    assert rows == [
        "| `tests/gpu/__golden__/test_a.sm90.safetensors` | different | `00112233445566aa` | `ffeeddccbbaa9988` | 1,234 |",
        "| `tests/__golden__/fingerprint (b).cpu.json` | different | `01` | `02` | unknown |",
        "| `x/__golden__/new.sm90.json` | only new | `none` | `abcdef0123456789` | unknown |",
    ]
    assert "- `layer.3: 2 of 4 rows differ, first at [1, 7]`" in ran.stdout
    assert (tmp_path / "out").read_text() == "changed=3\n"


def test_nothing_changed(tmp_path: Path) -> None:
    (tmp_path / "diff").write_text("7 goldens, 0 changed\n")
    ran = _run("describe", tmp_path / "diff", "--why", "x", "--run", "y", "--output", tmp_path / "out")
    assert (ran.returncode, ran.stdout, (tmp_path / "out").read_text()) == (0, "No golden changed.\n", "changed=0\n")


@pytest.mark.parametrize(
    "text",
    [
        "",
        DIFF.replace("7 goldens, 3 changed\n", ""),
        DIFF.replace("3 changed", "4 changed"),
        DIFF.replace("only new: ", "moved: "),
        "    details of nothing\n" + DIFF,
        DIFF.replace("7 goldens", "Traceback\n7 goldens"),
    ],
)
def test_a_comparison_that_is_not_understood_fails(tmp_path: Path, text: str) -> None:
    (tmp_path / "diff").write_text(text)
    ran = _run("describe", tmp_path / "diff", "--why", "x", "--run", "y", "--output", tmp_path / "out")
    assert ran.returncode == 1
    assert ran.stderr.startswith("::error::goldens: ")
    assert not (tmp_path / "out").exists()


def test_a_long_description_is_cut_to_what_github_takes(tmp_path: Path) -> None:
    lines = "".join(f"different: a/__golden__/{n:0100} (01 → 02)\n" for n in range(900))
    (tmp_path / "diff").write_text(f"{lines}900 goldens, 900 changed\n")
    ran = _run("describe", tmp_path / "diff", "--why", "x", "--run", "y")
    assert ran.returncode == 0
    assert len(ran.stdout) < 65_536
    assert "cut" in ran.stdout

"""A draft head and a target on disk, and the command run in this process."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specalign.cli.main import main
from tests.unit.checks.scenarios import GPT_OSS, HEAD


@dataclasses.dataclass(frozen=True)
class Ran:
    """What a run of the command printed and returned."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ran]:
    """`run("check", …)` in an empty folder, with an empty Hugging Face cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    def call(*arguments: object) -> Ran:
        try:
            code = main([str(a) for a in arguments])
        except SystemExit as stop:  # argparse's own way out
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture
def pair(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Write a draft config and a target config, and return their folders."""

    def write(draft: dict[str, Any] | None = None, target: dict[str, Any] | None = None) -> tuple[Path, Path]:
        for name, config in (("draft", draft or HEAD), ("target", target or GPT_OSS)):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
        return tmp_path / "draft", tmp_path / "target"

    return write

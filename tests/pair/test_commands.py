"""The commands on the real pair: the probe finds what each head was trained on, and the table tells the faults apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from specalign.cli.main import main

from .conftest import HEADS, PROMPTS, TRAINED_ON


def command(verb: str, place: Path, draft: Path, *more: str) -> list[str]:
    return [verb, "--target", str(place), "--draft", str(draft), "--prompts", str(PROMPTS), *more]


@pytest.mark.parametrize("name", TRAINED_ON)
def test_the_probe_finds_what_a_head_was_trained_on(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("probe", place, HEADS / name)) == 0
    assert f"it takes {list(TRAINED_ON[name])}: ids are boundaries" in capsys.readouterr().out


def test_the_probe_is_undecided_about_a_random_head(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    (tmp_path / "config.json").write_bytes((HEADS / "A" / "config.json").read_bytes())
    torch.manual_seed(0)
    tensors = {name: torch.randn(value.shape).mul(0.02).to(value.dtype) if value.dim() > 1 else value
               for name, value in load_file(HEADS / "A" / "model.safetensors").items()}  # fmt: skip
    save_file(tensors, tmp_path / "model.safetensors")
    assert main(command("probe", place, tmp_path, "--limit", "16")) == 1
    assert "undecided: the best candidate is right in" in capsys.readouterr().out


def test_a_reduced_table_tells_the_large_faults_apart(place: Path, tmp_path: Path) -> None:
    """Six prompts do not tell a shift by one apart, and the table says so; they do tell what costs half a token."""
    main(command("acceptance", place, HEADS / "B", "--table", "--limit", "6", "--new-tokens", "32", "--loop-prompts", "4",
                 "--json", str(tmp_path / "t.json"), "--html", str(tmp_path / "t.html")))  # fmt: skip
    found = json.loads((tmp_path / "t.json").read_text("utf-8"))
    rows = {row["name"]: row for row in found["rows"]}
    for name in ("boundary n replaced by n-1", "POST_NORM in place of boundary n", "order reversed", "ids -1"):
        assert rows[name]["told_apart"], name
    assert rows["right"]["length"]["value"] > 1.7
    assert rows["random head"]["length"]["value"] < 1.02
    assert rows["no drafting"]["length"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert [loop["differing"] for loop in found["loops"]] == [[], []]
    assert found["ok"] == (not found["problems"])
    assert (tmp_path / "t.html").stat().st_size > 5000

"""What `specalign acceptance` and `probe` refuse before they measure: damaged targets, heads that are no numbers, lost output."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specalign.cli.main import main

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from tests.unit.cli.test_acceptance import given, refused  # noqa: E402
from tests.unit.cli.tiny_pair import better_golden, golden_by_hand, write_pair  # noqa: E402

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair"))


def states(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        (folder / "config.json").write_text(json.dumps(config | changes), "utf-8")

    return change


def cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:500])


def template(text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        tokenizer.chat_template = text
        tokenizer.save_pretrained(folder)

    return change


@pytest.mark.parametrize("verb", ["acceptance", "probe"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "transformers cannot load a causal model there: SafetensorError"),
        (states(num_hidden_layers="x"), "transformers cannot load a causal model there"),
        (states(num_attention_heads=0), "transformers cannot load a causal model there"),
        (states(model_type="nope"), "transformers cannot load a causal model there"),
        (states(num_hidden_layers=9), "9 weights are missing, first model.layers.8"),
        (template("{{ raise_exception('no') }}"), "p0: the chat template of the target's tokenizer failed (TemplateError: no)"),
    ],
)
def test_a_damaged_target(
    place: Path, tmp_path: Path, capsys: Capture, verb: str, damage: Callable[[Path], None], message: str
) -> None:
    shutil.copytree(place / "target", tmp_path / "target")
    damage(tmp_path / "target")
    assert message in refused(given(place, verb, target=tmp_path / "target"), capsys)


@pytest.mark.parametrize("device", ["meta", "nonsense", *([] if torch.cuda.is_available() else ["cuda"])])
def test_a_device_that_is_not_there(place: Path, capsys: Capture, device: str) -> None:
    assert f"device {device!r} cannot be used" in refused(given(place, device=device), capsys)


def test_a_target_of_the_hugging_face_cache(
    place: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert "org/tiny: no such file or folder, and not in the Hugging Face cache" in refused(
        given(place, target="org/tiny"), capsys
    )
    folder = tmp_path / "models--org--tiny"
    shutil.copytree(place / "target", folder / "snapshots" / "abc")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc", "utf-8")
    assert main([*given(place, target="org/tiny"), "--new-tokens", "4"]) == 0
    assert "target  tiny" in capsys.readouterr().out


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_head_whose_weights_are_no_numbers(place: Path, tmp_path: Path, capsys: Capture, value: float) -> None:
    shutil.copytree(place / "draft", tmp_path / "draft")
    weights = load_file(tmp_path / "draft" / "model.safetensors")
    weights["fc.weight"][0, 0] = value
    save_file(weights, tmp_path / "draft" / "model.safetensors")
    assert "holds NaN or infinity" in refused(given(place, draft=tmp_path / "draft"), capsys)


def test_turns_that_end_up_under_one_name(place: Path, tmp_path: Path, capsys: Capture) -> None:
    lines = [{"question_id": "x", "turns": ["w2 w3", "w4"]}, {"question_id": "x/1", "turns": ["w7 w8"]}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    assert "'x/1': one would be lost" in refused(given(place, prompts=tmp_path / "p.jsonl"), capsys)


def test_a_prompt_too_short_for_the_probe_is_named(place: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "w1 w2 w3"}\n{"id": "one", "prompt": "w2"}\n', "utf-8")
    assert "prompt 'one' has fewer than 2 tokens" in refused(given(place, "probe", prompts=tmp_path / "p.jsonl"), capsys)


@pytest.mark.parametrize("option", ["--json", "--html", "--write-golden"])
def test_output_that_cannot_be_written_is_told_before_anything_is_loaded(
    place: Path, tmp_path: Path, capsys: Capture, option: str
) -> None:
    for path in (tmp_path, tmp_path / "no" / "file"):
        arguments = [*given(place, target=tmp_path / "none"), "--table", option, str(path)]
        assert refused(arguments, capsys).startswith(f"specalign acceptance: {option} {path}: cannot be written")


def test_fewer_than_no_prompts_in_the_loop(place: Path, capsys: Capture) -> None:
    assert "--loop-prompts -1: 0 for none" in refused([*given(place), "--loop-prompts", "-1"], capsys)


@pytest.mark.parametrize("more", ["--depth=3", "--new-tokens=5", "--limit=2", "--convention=hf", "--dtype=bfloat16"])
def test_settings_of_a_pair_beside_the_figures_of_an_engine(capsys: Capture, more: str) -> None:
    assert f"--from-log takes no {more.split('=')[0]}:" in refused(["acceptance", "--from-log", "x", more], capsys)


def test_a_gate_that_fails_says_why_beside_json_on_standard_output(
    place: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specalign.cli import acceptance as room

    path = tmp_path / "golden.json"
    monkeypatch.setattr(room, "golden_of", lambda table, pair: better_golden(golden_by_hand(table, pair)))
    main([*given(place), "--table", "--new-tokens", "20", "--write-golden", str(path)])
    capsys.readouterr()
    assert main([*given(place), "--new-tokens", "20", "--gate", str(path), "--json", "-"]) == 1
    found = capsys.readouterr()
    assert json.loads(found.out)["schema"] == "specalign.acceptance/1"
    assert "FAIL: acceptance length" in found.err

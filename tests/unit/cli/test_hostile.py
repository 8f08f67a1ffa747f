"""What a hostile review broke once: each stays mended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.checks.scenarios import DFLASH, GPT_OSS, HEAD, IDS, LLAMA, H, ids
from tests.unit.cli.conftest import Ran

Run = Callable[..., Ran]
Pair = Callable[..., tuple[Path, Path]]
NO_IDS_DFLASH = DFLASH | {"dflash_config": {}}
QWEN3 = GPT_OSS | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
NEW = ("--engine", "sglang==0.5.23")


def codes(ran: Ran, engine: str | None = None) -> set[str]:
    """The codes of all errors of a JSON report."""
    return {f["code"] for f in ran.json()["findings"] if f["severity"] == "error" and (engine is None or f["engine"] == engine)}


@pytest.mark.parametrize("layers", [10**9, 10**400, -1, 0, True, "5", None, 2.5])
def test_a_draft_with_an_absurd_number_of_layers_is_bounded(run: Run, pair: Pair, layers: object) -> None:
    ran = run("check", *pair(NO_IDS_DFLASH | {"num_hidden_layers": layers}), *NEW, "--format", "json")
    assert ran.code == 1
    assert "ids-refused" in codes(ran)


@pytest.mark.parametrize("architecture", ["DFlashDraftModel", "DFlashSpeculator"])
@pytest.mark.parametrize("version", ["0.33.0", "0.24.0", "0.20.2"])
def test_vllm_converts_speculators_dflash_heads(run: Run, pair: Pair, architecture: str, version: str) -> None:
    draft = {
        "architectures": [architecture],
        "speculators_model_type": "dflash",
        "aux_hidden_state_layer_ids": [2, 10, 18, 26, 34],
        "num_hidden_layers": 5,
        "hidden_size": H,
    }
    ran = run("check", *pair(draft, QWEN3), "--engine", f"vllm=={version}", "--format", "json")
    assert codes(ran) == set()
    assert ran.json()["engines"][0]["states"] == [2, 10, 18, 26, 34]


ROUND_TRIPS: list[tuple[dict[str, Any], str, str | None]] = [
    (HEAD | {"eagle_config": {IDS: [1, 17, 32]}, IDS: None}, "vllm", "output"),
    (HEAD | {"eagle_config": {IDS: [1, 17, 32]}, IDS: None}, "llama.cpp", "output"),
    (HEAD | {"eagle_config": {IDS: [3, 19, 30]}, IDS: None}, "sglang", "boundary"),
    (HEAD | ids([3, 19, 30]), "vllm", "boundary"),
    (HEAD | {"eagle_config": HEAD["eagle_config"] | {"target_hidden_size": None}}, "sglang", None),
]


@pytest.mark.parametrize(("draft", "engine", "convention"), ROUND_TRIPS)
def test_a_written_config_speaks_for_itself_and_stays(
    run: Run, pair: Pair, tmp_path: Path, draft: dict[str, Any], engine: str, convention: str | None
) -> None:
    source, target = pair(draft)
    out = tmp_path / "out.json"
    says = ("--convention", convention) if convention else ()
    run("check", source, target, "--engine", engine, *says, "--write-config", out)
    first = out.read_text()
    assert run("check", out, target, "--engine", engine).code == 0
    for again in (says, ()):
        run("check", out, target, "--engine", engine, *again, "--write-config", out)
        assert out.read_text() == first


@pytest.mark.parametrize(
    ("draft", "engine"), [(HEAD, "tokenspeed"), (HEAD | {"eagle_config": {IDS: [0, 19, 30]}, IDS: None}, "sglang==0.5.16")]
)
def test_what_no_file_can_say_is_not_written(run: Run, pair: Pair, tmp_path: Path, draft: dict[str, Any], engine: str) -> None:
    ran = run("check", *pair(draft), "--engine", engine, "--convention", "boundary", "--write-config", tmp_path / "o.json")
    assert ran.code == 2
    assert not (tmp_path / "o.json").exists()


def test_a_link_stays_a_link_and_the_mode_stays(run: Run, pair: Pair, tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("{}")
    real.chmod(0o644)
    link.symlink_to(real)
    run("check", *pair(), *NEW, "--write-config", link)
    assert link.is_symlink()
    assert json.loads(real.read_text())["hidden_size"] == H
    assert real.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("draft", "target"),
    [
        (HEAD | {"eagle_config": {IDS: [1, 17, 32]}, IDS: [2, 18, 33]}, GPT_OSS),
        (
            DFLASH | {"dflash_config": {"target_layer_ids": [1, 17, 32]}, "aux_hidden_state_layer_ids": [2, 18, 33]},
            QWEN3,
        ),
    ],
)
def test_two_lists_that_name_the_same_states_do_not_conflict(
    run: Run, pair: Pair, draft: dict[str, Any], target: dict[str, Any]
) -> None:
    ran = run("check", *pair(draft, target), *NEW, "--engine", "vllm", "--format", "json")
    assert codes(ran) == set()
    assert [e["states"] for e in ran.json()["engines"]] == [[2, 18, 33]] * 2


def test_the_buffer_counts_ids_at_another_place(run: Run, pair: Pair) -> None:
    """SGLang with four top-level ids: three states captured, room for four, fc for three."""
    ran = run("check", *pair(HEAD | {"eagle_config": None, IDS: [3, 19, 30, 33]}, LLAMA), *NEW, "--format", "json")
    assert "width-source-differs" in codes(ran)


@pytest.mark.parametrize("ids_", [[-1, 3, 19], [1, 17, 36]])
def test_sglang_refuses_dflash_ids_out_of_range_at_start(run: Run, pair: Pair, ids_: list[int]) -> None:
    ran = run("check", *pair(DFLASH | {"dflash_config": {"target_layer_ids": ids_}}, QWEN3), *NEW, "--format", "json")
    assert "ids-refused" in codes(ran, "sglang==0.5.23")


def test_an_empty_list_is_unset_for_vllm_and_a_crash_for_sglang(run: Run, pair: Pair) -> None:
    ran = run("check", *pair(HEAD | {"eagle_config": {IDS: []}, IDS: []}), *NEW, "--engine", "vllm==0.33.0", "--format", "json")
    assert codes(ran, "vllm==0.33.0") == set()
    assert "ids-refused" in codes(ran, "sglang==0.5.23")


@pytest.mark.parametrize("key", ["dflash_config", "markov_rank", "speculators_config", "speculators_model_type"])
def test_null_keys_decide_nothing(run: Run, pair: Pair, key: str) -> None:
    folder, target = pair(HEAD | ids([1, 17, 32]))
    config = json.loads((folder / "config.json").read_text()) | {key: None}
    (folder / "config.json").write_text(json.dumps(config))
    report = run("check", folder, target, *NEW, "--format", "json").json()
    assert (report["draft"]["kind"], report["meaning"]["certainty"]) == ("eagle3", "hint")


@pytest.mark.parametrize(
    "settings",
    [
        {"sliding_window": 128, "layer_types": ["full_attention", *["sliding_attention"] * 35]},
        {"sliding_window": 4096, "max_position_embeddings": 4096},
        {"rope_scaling": {"rope_type": None, "type": "yarn", "factor": 2}, "rope_parameters": {"rope_type": "yarn", "factor": 2}},
    ],
)
def test_settings_without_effect_are_no_error(run: Run, pair: Pair, settings: dict[str, Any]) -> None:
    assert run("check", *pair(HEAD | settings), *NEW).code == 0


def test_an_engine_is_not_called_fine_when_the_files_are_wrong(run: Run, pair: Pair) -> None:
    out = run("check", *pair(HEAD | {"target_hidden_size": 7}), *NEW).out
    assert "see the files" in out or "error" in out.splitlines()[6]
    assert "without errors" not in out


def test_shallow_targets(run: Run, pair: Pair) -> None:
    five = LLAMA | {"num_hidden_layers": 5}
    ran = run("check", *pair(HEAD | {"eagle_config": None, IDS: None}, five), "--engine", "tensorrt-llm", "--format", "json")
    assert "ids-refused" in codes(ran)
    ran = run("check", *pair(NO_IDS_DFLASH | {"num_hidden_layers": 1}, five), *NEW, "--format", "json")
    assert codes(ran) == set()


def test_the_same_engine_named_twice_is_checked_once(run: Run, pair: Pair) -> None:
    ran = run("check", *pair(), "--engine", "sglang", "--engine", "SGLang==v0.5.23", "--format", "json")
    assert len(ran.json()["engines"]) == 1


def test_null_sizes_at_the_top_fall_through_to_text_config(run: Run, pair: Pair) -> None:
    draft, target = pair()
    (target / "config.json").write_text(
        json.dumps({"num_layers": None, "text_config": GPT_OSS, "architectures": GPT_OSS["architectures"]})
    )
    assert run("check", draft, target, *NEW).code == 0


def test_a_dflash_head_served_as_eagle_is_told(run: Run, pair: Pair) -> None:
    assert "eagle3-served-as-eagle" in codes(run("check", *pair(DFLASH), *NEW, "--kind", "eagle", "--format", "json"))


def test_names_cannot_start_a_line(run: Run, pair: Pair) -> None:
    out = run("check", *pair(HEAD | {"architectures": ["Eagle3\n::error::injected"]}), *NEW).out
    assert not any(line.startswith("::error") for line in out.splitlines())


def test_json_never_holds_nan(run: Run, pair: Pair) -> None:
    folder, target = pair()
    (folder / "config.json").write_text(
        '{"architectures": ["LlamaForCausalLMEagle3"], "eagle_aux_hidden_state_layer_ids": [NaN, 1]}'
    )
    ran = run("check", folder, target, *NEW, "--format", "json")
    json.loads(ran.out, parse_constant=lambda name: pytest.fail(f"{name} in the report"))


def test_ignoring_for_an_unknown_engine_is_refused(run: Run, pair: Pair) -> None:
    assert run("check", *pair(), "--ignore", "ids-shifted@typo").code == 2


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, as a shell would start it."""
    root = Path(__file__).parents[3]
    env = os.environ | {"PYTHONPATH": f"{root / 'impl'}{os.pathsep}{root}"} | options.pop("env", {})
    return subprocess.run(
        [sys.executable, "-m", "specalign.cli.main", *arguments],
        text=True,
        env=env,
        stderr=subprocess.PIPE,
        check=False,
        **options,
    )


def test_output_that_cannot_be_written_is_one_line(pair: Pair) -> None:
    folders = [str(f) for f in pair()]
    with Path("/dev/full").open("w") as full:
        done = command("check", *folders, *NEW, stdout=full)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    closed = command("check", *folders, *NEW, preexec_fn=lambda: os.close(1))
    assert "Traceback" not in closed.stderr


def test_a_terminal_without_utf8_gets_the_report_all_the_same(pair: Pair, tmp_path: Path) -> None:
    draft, target = pair()
    named = tmp_path / "é"
    draft.rename(named)
    done = command(
        "check", str(named), str(target), *NEW, stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)


def test_a_deleted_current_folder_is_one_line(pair: Pair, tmp_path: Path) -> None:
    folders = [str(f) for f in pair()]
    gone = tmp_path / "gone"
    gone.mkdir()
    code = "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); from specalign.cli.main import main; sys.exit(main(sys.argv[2:]))"
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code, str(gone), "check", *folders],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root / "impl")},
        check=False,
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


@pytest.mark.parametrize("text", ["tool = 3", "[tool]\nspecalign = 3", "x = " + "[" * 5000])
def test_a_broken_project_file_is_one_line(run: Run, pair: Pair, tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    ran = run("check", *pair(), *NEW)
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)

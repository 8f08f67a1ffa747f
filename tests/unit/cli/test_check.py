"""`specalign check`: forms of output, exit codes, ignoring, writing a config, bad input."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.unit.checks.scenarios import DFLASH, GPT_OSS, HEAD, IDS, LLAMA, ids
from tests.unit.checks.table import SCENARIOS
from tests.unit.cli.conftest import Ran

Run = Callable[..., Ran]
Pair = Callable[..., tuple[Path, Path]]
SCHEMA = json.loads(resources.files("specalign").joinpath("schemas/check-1.json").read_text("utf-8"))


def test_a_right_pair_is_clean_and_exits_0(run: Run, pair: Pair) -> None:
    ran = run("check", *pair(), "--engine", "sglang==0.5.23")
    assert ran.code == 0
    assert "[24, 30, 36]" in ran.out
    assert "error" not in ran.out.replace("errors", "")


def test_an_error_exits_1_and_predicts_the_very_sizes(run: Run, pair: Pair) -> None:
    ran = run("check", *pair(), "--engine", "sglang==0.5.16")
    assert ran.code == 1
    assert "5760 and 8640" in ran.out


def test_all_engines_are_checked_when_none_is_named(run: Run, pair: Pair) -> None:
    labels = [e["engine"] for e in run("check", *pair(), "--format", "json").json()["engines"]]
    assert {"sglang", "vllm", "tensorrt-llm", "eagle", "specforge", "speculators", "modelopt", "llama.cpp", "tokenspeed"} <= set(
        labels
    )


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: s.code)
def test_json_of_every_scenario_follows_the_schema(scenario: Any) -> None:
    from specalign.layer_ids.report import as_json

    jsonschema.validate(json.loads(json.dumps(as_json(scenario.report()))), SCHEMA)


def test_json_says_what_text_says(run: Run, pair: Pair) -> None:
    report = run("check", *pair(), "--engine", "sglang==0.5.16", "--format", "json").json()
    assert (report["ok"], report["exit_code"], report["schema"]) == (False, 1, "specalign.check/1")
    view = report["engines"][0]
    assert (view["named"], view["states"], view["lost"]) == ([25, 31, 37], [25, 31], [37])
    assert {f["code"] for f in report["findings"]} >= {"ids-shifted", "state-unreachable", "width-mismatch"}


def test_github_annotations_escape_and_name_the_file(run: Run, pair: Pair) -> None:
    lines = run("check", *pair(), "--engine", "sglang==0.5.16", "--format", "github").out.splitlines()
    assert lines
    assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in lines)
    assert any(
        "file=draft/config.json,title=specalign ids-shifted (sglang==0.5.16)::" in line and "%0A" in line for line in lines
    )


def test_an_ignored_code_does_not_count_and_is_listed(run: Run, pair: Pair) -> None:
    codes = ("ids-shifted", "state-unreachable@sglang", "width-mismatch@sglang==0.5.16")
    ran = run("check", *pair(), "--engine", "sglang==0.5.16", *(x for code in codes for x in ("--ignore", code)))
    assert ran.code == 0
    assert "ignored ids-shifted" in ran.out


def test_an_unknown_code_to_ignore_is_unusable_input(run: Run, pair: Pair) -> None:
    ran = run("check", *pair(), "--ignore", "ids-shifty")
    assert ran.code == 2
    assert "ids-shifty" in ran.err


def test_the_project_file_ignores_with_a_reason(run: Run, pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.specalign]\nengines = ["sglang==0.5.16"]\nignore = { "width-mismatch" = "known" }\n'
    )
    ran = run("check", *pair())
    assert "ignored width-mismatch (sglang==0.5.16): known" in ran.out
    assert "vllm" not in ran.out


@pytest.mark.parametrize(
    "table",
    ["ignore = { ids-shifted = '' }", "ignore = ['x']", "engines = 'sglang'", "colour = 1", "ignore = { x-y = 'r' }", "a = ["],
)
def test_a_wrong_project_file_is_unusable_input(run: Run, pair: Pair, tmp_path: Path, table: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.specalign]\n{table}\n")
    ran = run("check", *pair())
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1


def test_flag_ids_reach_only_engines_with_a_flag(run: Run, pair: Pair) -> None:
    report = run("check", *pair(), "--flag-ids", "23,29,35", "--format", "json").json()
    states = {e["engine"] + str(e["version"]): e["states"] for e in report["engines"]}
    assert states["tensorrt-llm1.3.0rc0"] == [24, 30, 36]
    assert states["sglang0.5.16"] == [25, 31]


def test_declaring_the_convention_turns_a_warning_into_an_error(run: Run, pair: Pair) -> None:
    folders = pair(HEAD | ids([3, 19, 30]))
    assert run("check", *folders, "--engine", "sglang==0.5.23").code == 0
    ran = run("check", *folders, "--engine", "sglang==0.5.23", "--convention", "boundary")
    assert ran.code == 1
    assert "ids-shifted" in ran.out
    assert "[2, 18, 29]" in ran.out


@pytest.mark.parametrize(
    ("draft", "target", "engine", "options"),
    [
        (HEAD | {IDS: None}, GPT_OSS, "vllm==0.33.0", ()),
        (HEAD | ids([3, 19, 30]), GPT_OSS, "sglang==0.5.23", ("--convention", "boundary")),
        (HEAD | ids([3, 19, 30, 33]) | {"target_hidden_size": None}, LLAMA, "sglang==0.5.23", ("--convention", "output")),
        (HEAD | {"eagle_config": None, "norm_before_fc": True}, GPT_OSS, "tensorrt-llm==1.3.0rc0", ("--flag-ids", "23,29,35")),
        (DFLASH, GPT_OSS, "sglang==0.5.23", ()),
    ],
)
def test_a_written_config_is_clean_for_its_engine(
    run: Run, pair: Pair, tmp_path: Path, draft: dict[str, Any], target: dict[str, Any], engine: str, options: tuple[str, ...]
) -> None:
    folders = pair(draft, target)
    out = tmp_path / "fixed" / "config.json"
    out.parent.mkdir()
    written = run("check", *folders, "--engine", engine, *options, "--write-config", out)
    assert out.exists(), written.err
    again = run(
        "check", out, folders[1], "--engine", engine, *(o for o in options if o not in ("--convention", "output", "boundary"))
    )
    assert again.code == 0, again.out
    kept = json.loads(out.read_text())
    assert all(kept[key] == value for key, value in draft.items() if value is not None and key not in ("eagle_config", IDS))
    assert not list(out.parent.glob(".*part"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "one engine"),
        (("--engine", "sglang==0.5.23", "--engine", "vllm"), "one engine"),
        (("--engine", "sglang==0.5.16"), "cannot be given [24, 30, 36]"),
    ],
)
def test_what_cannot_be_written_is_refused_and_nothing_is_left(
    run: Run, pair: Pair, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    ran = run("check", *pair(), *arguments, "--write-config", tmp_path / "out.json")
    assert ran.code == 2
    assert says in ran.err
    assert not (tmp_path / "out.json").exists()


def test_a_guessed_convention_is_not_written(run: Run, pair: Pair, tmp_path: Path) -> None:
    ran = run("check", *pair(HEAD | ids([1, 17, 32])), "--engine", "vllm", "--write-config", tmp_path / "out.json")
    assert (ran.code, (tmp_path / "out.json").exists()) == (2, False)


def test_writing_into_a_missing_folder_is_one_line(run: Run, pair: Pair, tmp_path: Path) -> None:
    ran = run("check", *pair(), "--engine", "sglang==0.5.23", "--write-config", tmp_path / "no" / "out.json")
    assert ran.code == 2
    assert "cannot write" in ran.err


BAD = {
    "truncated": '{"architectures": ["LlamaForCausalLMEagle3"',
    "not an object": "[1, 2]",
    "another architecture": '{"architectures": ["ResNet50"]}',
    "huge number": '{"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 1' + "0" * 5000 + "}",
    "empty": "",
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_line_and_exit_2(run: Run, pair: Pair, name: str) -> None:
    draft, target = pair()
    (draft / "config.json").write_text(BAD[name])
    ran = run("check", draft, target)
    assert (ran.code, ran.out) == (2, "")
    assert len(ran.err.splitlines()) == 1
    assert len(ran.err) < 500


def test_a_symlink_loop_is_one_clear_line(run: Run, pair: Pair) -> None:
    draft, target = pair()
    (draft / "config.json").unlink()
    (draft / "config.json").symlink_to(draft / "config.json")
    ran = run("check", draft, target)
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1


def test_a_2_gb_config_is_refused_at_once(run: Run, pair: Pair) -> None:
    draft, target = pair()
    os.truncate(draft / "config.json", 2 << 30)
    assert run("check", draft, target).code == 2


def test_an_index_naming_missing_shards_is_refused(run: Run, pair: Pair) -> None:
    draft, target = pair()
    (draft / "model.safetensors.index.json").write_text('{"weight_map": {"fc.weight": "model-00001-of-00002.safetensors"}}')
    ran = run("check", draft, target)
    assert ran.code == 2
    assert "model-00001-of-00002.safetensors" in ran.err


def test_an_index_alone_in_the_cache_means_weights_not_read(run: Run, pair: Pair, tmp_path: Path) -> None:
    draft, target = pair()
    snapshot = tmp_path / "hub" / "models--org--head" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (draft / "config.json").rename(snapshot / "config.json")
    (snapshot / "model.safetensors.index.json").write_text('{"weight_map": {"fc.weight": "model-00001-of-00001.safetensors"}}')
    ran = run("check", snapshot, target, "--engine", "sglang==0.5.23")
    assert ran.code == 0
    assert "weights-not-read" in ran.out


def test_a_lying_header_length_is_refused(run: Run, pair: Pair) -> None:
    draft, target = pair()
    (draft / "model.safetensors").write_bytes((1 << 40).to_bytes(8, "little") + b"{}")
    assert run("check", draft, target).code == 2


def test_swapped_arguments_are_recognized(run: Run, pair: Pair) -> None:
    draft, target = pair()
    ran = run("check", target, draft)
    assert ran.code == 2
    assert "draft first" in ran.err


def test_an_unknown_repository_says_how_to_fetch_it(run: Run, pair: Pair) -> None:
    ran = run("check", "org/head", pair()[1])
    assert ran.code == 2
    assert "hf download org/head" in ran.err


@pytest.mark.parametrize(
    "arguments", [("--engine", "nosuch"), ("--engine", "sglang==x"), ("--pp-size", "0"), ("--flag-ids", "1,b")]
)
def test_wrong_arguments_exit_2(run: Run, pair: Pair, arguments: tuple[str, ...]) -> None:
    ran = run("check", *pair(), *arguments)
    assert ran.code == 2
    assert ran.err


def test_a_snapshot_of_the_hub_cache_is_all_symlinks_and_works(run: Run, pair: Pair, tmp_path: Path) -> None:
    draft, target = pair()
    repo = tmp_path / "hub" / "models--org--head"
    (repo / "blobs").mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "snapshots" / "abc").mkdir(parents=True)
    (draft / "config.json").rename(repo / "blobs" / "1234")
    (repo / "refs" / "main").write_text("abc")
    (repo / "snapshots" / "abc" / "config.json").symlink_to("../../blobs/1234")
    for source in ("org/head", repo, repo / "snapshots" / "abc"):
        assert run("check", source, target, "--engine", "sglang==0.5.23").code == 0

"""`specalign acceptance` and `specalign probe` as commands: a tiny pair on disk, each bad input as one line, figures of engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specalign.cli.main import main

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from tests.unit.cli.tiny_pair import HEAD, better_golden, golden_by_hand, write_head, write_pair  # it needs both


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with target/, draft/ and prompts.jsonl."""
    return write_pair(tmp_path_factory.mktemp("pair"))


def given(place: Path, verb: str = "acceptance", **changes: object) -> list[str]:
    options = {"target": place / "target", "draft": place / "draft", "prompts": place / "prompts.jsonl"} | changes
    return [verb, *(part for name, value in options.items() for part in (f"--{name}", str(value)))]


def test_the_length_alone(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    assert main([*given(place), "--new-tokens", "20", "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert "right" in text
    assert "ids +1" not in text
    found = json.loads(out.read_text("utf-8"))
    assert [row["name"] for row in found["rows"]] == ["right"]
    assert found["rows"][0]["states"] == "[1, 4, 8]"
    assert found["rows"][0]["prompts"] == 8
    assert found["loops"] == [{"row": "right", "prompts": 8, "differing": []}]
    assert (found["environment"]["device"], found["environment"]["dtype"]) == ("cpu", "float32")


def test_a_table_that_proves_nothing_exits_with_1(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main([*given(place), "--table", "--new-tokens", "12", "--limit", "3", "--html", str(tmp_path / "out.html")])
    text = capsys.readouterr().out
    assert code == 1
    assert "PROBLEM: 'ids" in text
    assert f"report: {tmp_path / 'out.html'}" in text
    assert "ids -1" in (tmp_path / "out.html").read_text("utf-8")


def test_json_alone_on_standard_output(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*given(place), "--new-tokens", "5", "--limit", "2", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "specalign.acceptance/1"


def test_the_probe_is_undecided_about_a_random_head(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(given(place, "probe")) == 1
    assert "undecided: " in capsys.readouterr().out


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Exit code 2, nothing printed, and one line on standard error."""
    assert main(arguments) == 2
    found = capsys.readouterr()
    assert found.out == ""
    lines = [line for line in found.err.splitlines() if line.startswith("specalign ")]
    assert len(lines) == 1
    return lines[0]


def test_a_head_of_another_width(place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_head(tmp_path / "wide", HEAD | {"target_hidden_size": 20})
    assert "hidden size: the head has 20, the target 16" in refused(given(place, draft=tmp_path / "wide"), capsys)


def test_a_head_of_another_vocabulary(place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_head(tmp_path / "other", HEAD | {"vocab_size": 14})
    assert "14" in refused(given(place, draft=tmp_path / "other"), capsys)


def test_ids_that_prove_nothing(place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_head(tmp_path / "vague", HEAD | {"eagle_aux_hidden_state_layer_ids": [1, 4, 6]})
    assert "may be boundaries or block outputs" in refused(given(place, draft=tmp_path / "vague"), capsys)
    assert main([*given(place, draft=tmp_path / "vague"), "--convention", "output", "--new-tokens", "4"]) == 0
    assert "[2, 5, 7]" in capsys.readouterr().out


def test_a_state_that_the_target_does_not_have(place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_head(tmp_path / "deep", HEAD | {"eagle_aux_hidden_state_layer_ids": [1, 4, 9]})
    assert "layer id 9 is out of range" in refused(given(place, draft=tmp_path / "deep"), capsys)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "prompts.jsonl"),
        ('{"question": "what?"}\n', "line 1"),
        ('{"prompt": ""}\n', "line 1"),
        ('{"prompt": "w1 w2"}\nno json\n', "line 2"),
        (json.dumps({"prompt": "w1 " * 60}) + "\n", "has 60 tokens, with 68 new ones more than the target's 64"),
    ],
)
def test_prompts(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str) -> None:
    (tmp_path / "prompts.jsonl").write_text(content, "utf-8")
    assert message in refused(given(place, prompts=tmp_path / "prompts.jsonl"), capsys)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--new-tokens", "0"], "--new-tokens 0: at least 1"),
        (["--depth", "0"], "--depth 0: at least 1"),
        (["--limit", "0"], "--limit 0"),
        (["--from-log", "x"], "--from-log stands alone"),
    ],
)
def test_options(place: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str) -> None:
    assert message in refused([*given(place), *more], capsys)


def test_nothing_there(place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "--target, --draft, --prompts is missing" in refused(["acceptance"], capsys)
    assert "no config.json, and 0 .gguf files" in refused(given(place, target=tmp_path), capsys)
    assert "no.jsonl" in refused(given(place, prompts=tmp_path / "no.jsonl"), capsys)


def test_the_gate(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A random head proves nothing, so its golden is made by hand: the right way as measured, beside made-up rows."""
    from specalign.acceptance.golden_file import AcceptanceGolden, write_golden
    from specalign.cli import acceptance as room

    golden: list[AcceptanceGolden] = []

    def made(table: Any, pair: Any) -> AcceptanceGolden:
        golden.append(golden_by_hand(table, pair))
        return golden[-1]

    path = tmp_path / "golden.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "golden_of", made)
        main([*given(place), "--table", "--new-tokens", "20", "--write-golden", str(path)])
    capsys.readouterr()
    assert main([*given(place), "--new-tokens", "20", "--gate", str(path)]) == 0
    assert "PASS: acceptance length" in capsys.readouterr().out
    write_golden(better_golden(golden[0]), path)
    assert main([*given(place), "--new-tokens", "20", "--gate", str(path)]) == 1
    assert "FAIL: acceptance length" in capsys.readouterr().out
    assert "new tokens: 21 here, 20 there" in refused([*given(place), "--new-tokens", "21", "--gate", str(path)], capsys)
    assert "dtype: float64 here, float32 there" in refused(
        [*given(place, dtype="float64"), "--new-tokens", "20", "--gate", str(path)], capsys
    )


def test_a_golden_of_a_table_that_proves_nothing(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "golden.json"
    assert "proves too little" in refused([*given(place), "--table", "--new-tokens", "8", "--write-golden", str(path)], capsys)
    assert not path.exists()
    assert "--write-golden needs --table" in refused([*given(place), "--write-golden", str(path)], capsys)
    assert "golden.json" in refused([*given(place), "--gate", str(path)], capsys)


SERVED = Path(__file__).parents[1] / "acceptance" / "served"


def test_figures_of_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    files = sorted(path for path in SERVED.iterdir() if path.suffix != ".md")
    assert files
    for path in files:
        if main(["acceptance", "--from-log", str(path)]) == 0:
            text = capsys.readouterr().out
            assert "acceptance length " in text, path.name
            assert text.split(",")[0] in ("vLLM", "SGLang", "TensorRT-LLM"), path.name
        else:
            capsys.readouterr()


def test_figures_of_an_engine_are_held_against_a_golden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counters as vLLM gives them, of the golden's own rounds: as they are, and with a third of the accepted drafts gone."""
    from specalign.acceptance import measure
    from specalign.acceptance.golden_file import golden_of, write_golden
    from tests.unit.acceptance.made_runs import PAIR, table

    made = table()
    path, scrape = tmp_path / "golden.json", tmp_path / "vllm.prom"
    write_golden(golden_of(made, PAIR), path)
    figures = measure(made.counts)

    def write(accepted: int) -> None:
        counts = {"drafts": figures.rounds, "draft_tokens": figures.proposed, "accepted_tokens": accepted}
        scrape.write_text("".join(f"vllm:spec_decode_num_{name}_total {value}.0\n" for name, value in counts.items()), "utf-8")

    write(figures.accepted)
    assert main(["acceptance", "--from-log", str(scrape), "--gate", str(path)]) == 0
    assert "PASS: vLLM's acceptance length 2." in capsys.readouterr().out
    write(figures.accepted * 2 // 3)
    assert main(["acceptance", "--from-log", str(scrape), "--gate", str(path)]) == 1
    assert "FAIL: vLLM's acceptance length 1." in capsys.readouterr().out
    sglang = str(SERVED / "sglang.log")
    assert "how many rounds" in refused(["acceptance", "--from-log", sglang, "--gate", str(path)], capsys)
    assert "no.json" in refused(["acceptance", "--from-log", str(scrape), "--gate", str(tmp_path / "no.json")], capsys)
    assert "alone" in refused(["acceptance", "--from-log", str(scrape), "--write-golden", str(path)], capsys)


def test_no_figures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello", "utf-8")
    assert "no figures of acceptance" in refused(["acceptance", "--from-log", str(tmp_path / "x")], capsys)
    assert "one source, or two scrapes" in refused(["acceptance", "--from-log", "a", "b", "c"], capsys)

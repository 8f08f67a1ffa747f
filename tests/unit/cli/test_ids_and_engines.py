"""`specalign ids`, `specalign engines`, and the command itself."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran

Run = Callable[..., Ran]


def test_bare_ids_under_conventions_and_engines(run: Run) -> None:
    ran = run("ids", "24,30,36", "--num-layers", 36, "--family", "gpt_oss", "--format", "json")
    rows = {row["who"]: row for row in ran.json()["rows"]}
    assert rows["convention BOUNDARY"]["states"] == [24, 30, 36]
    assert rows["convention OUTPUT"]["states"] is None
    assert rows["convention HF"]["states"] == [24, 30, "POST_NORM"]
    assert rows["sglang==0.5.16"]["states"] == [25, 31]
    assert rows["sglang==0.5.23"]["states"] == [24, 30, 36]
    assert rows["tokenspeed"]["states"] == [25, 31, 36]


def test_tensorrt_llm_boundaries_are_the_recipe_of_the_published_head(run: Run) -> None:
    """The public recipe serves ids [24, 30, 36] with eagle3_layers_to_capture [23, 29, 35]."""
    rows = {r["who"]: r for r in run("ids", "23,29,35", "-n", 36, "--format", "json").json()["rows"]}
    assert rows["tensorrt-llm==1.3.0rc0"]["states"] == [24, 30, 36]


def test_the_default(run: Run) -> None:
    rows = {r["who"]: r for r in run("ids", "default", "-n", 36, "--format", "json").json()["rows"]}
    assert rows["convention BOUNDARY"]["states"] == rows["convention OUTPUT"]["states"] == [2, 18, 33]


@pytest.mark.parametrize(
    "arguments", [("24,x", "-n", 36), ("37", "-n", 36), ("1", "-n", 0), ("1", "-n", 36, "--family", "nosuch")]
)
def test_bad_ids_exit_2_with_one_line(run: Run, arguments: tuple[object, ...]) -> None:
    ran = run("ids", *arguments)
    assert ran.code == 2
    assert len(ran.err.splitlines()) == 1


def test_engines_list_names_every_engine(run: Run) -> None:
    ran = run("engines", "list")
    assert ran.code == 0
    assert all(
        name in ran.out for name in ("sglang", "vllm", "tensorrt-llm", "llama.cpp", "speculators", "modelopt", "specforge")
    )
    assert "as_is_if_max_is_n" in run("engines", "list", "--engine", "sglang").out


SETTER = """
class GptOssForCausalLM:
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        n = self.config.num_hidden_layers
        if layer_ids is None:
            self.model.layers_to_capture = [2, n // 2, n - 3]
        else:
            self.model.layers_to_capture = [val + {shift} for val in layer_ids]
"""


def wheel(folder: Path, version: str, shift: int) -> Path:
    """A tiny wheel in which the GPT-OSS setter adds `shift`."""
    path = folder / f"sglang-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("sglang/srt/models/gpt_oss.py", SETTER.replace("{shift}", str(shift)))
        archive.writestr(f"sglang-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    return path


def test_drift_of_a_wheel_is_printed_and_exits_1(run: Run, tmp_path: Path) -> None:
    ran = run("engines", "verify", "--wheel", wheel(tmp_path, "0.5.16", 2))
    assert ran.code == 1
    assert (
        "GptOssForCausalLM set_eagle3_layers_to_capture [24, 30, 36]: the profile says [25, 31, 37], the wheel [26, 32, 38]"
        in ran.out
    )


def test_setters_that_left_the_wheel_are_drift_too(run: Run, tmp_path: Path) -> None:
    ran = run("engines", "verify", "--wheel", wheel(tmp_path, "0.5.16", 1))
    assert ran.code == 1
    assert "gpt_oss:GptOssForCausalLM" not in ran.out
    assert "LlamaForCausalLM set_eagle3_layers_to_capture: the profile says the rule output, the wheel no setter" in ran.out


def test_what_is_no_wheel_exits_2(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"no zip")
    assert run("engines", "verify", "--wheel", tmp_path / "x.whl").code == 2


def test_no_verb_prints_help_and_exits_2(run: Run) -> None:
    ran = run()
    assert ran.code == 2
    assert "check" in ran.out


def test_the_command_imports_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "jinja2", "hypothesis", "rich", "safetensors", "pytest", "jsonschema"}
    code = (
        "import sys; from specalign.cli.main import main; main(['ids', '1,2', '-n', '36']);"
        f"print(sorted({heavy!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"

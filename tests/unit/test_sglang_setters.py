"""The setter runner: it reports what a wheel's source does, and says so when it cannot tell."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from textwrap import dedent, indent

import pytest

from specalign.integrations.sglang_setters import (
    DEFAULT_IDS,
    SetterCase,
    SetterReport,
    SetterRunError,
    read_setters,
    run_setters,
)

MODELS = "sglang/srt/models"
EXPLICIT = (1, 17, 32)

PLAIN = """
import logging
from typing import List, Optional
from torch import nn
from sglang.srt.runtime_context import get_parallel

logger = logging.getLogger(__name__)

class PlainForCausalLM(nn.Module):
    def __init__(self, config):
        self.pp_group = get_parallel().pp_group

    def set_eagle3_layers_to_capture(self, layer_ids: Optional[List[int]] = None):
        if not self.pp_group.is_last_rank:
            return
        self.capture_aux_hidden_states = True
        if layer_ids is None:
            n = self.config.num_hidden_layers
            self.model.layers_to_capture = [2, n // 2, n - 3]
        else:
            logger.info("ids %s", layer_ids)
            self.model.layers_to_capture = [val + 1 for val in layer_ids]
"""

FLAGGING = """
from torch import nn

class FlagModel(nn.Module):
    def set_eagle3_layers_to_capture(self, layers_to_capture):
        self.layers_to_capture = layers_to_capture
        for layer_id in self.layers_to_capture:
            setattr(self.layers[layer_id], "_is_layer_to_capture", True)

class FlagForCausalLM(nn.Module):
    def __init__(self, config, body_cls=FlagModel):
        self.model = body_cls(config)

    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.model.set_eagle3_layers_to_capture([val + 1 for val in layer_ids])
"""


@pytest.fixture
def wheel(tmp_path):
    """Builds a wheel from {path under sglang/srt/models: source}."""

    def build(**files: str) -> Path:
        return build_wheel(tmp_path, {f"{MODELS}/{name}.py": text for name, text in files.items()})

    return build


def build_wheel(folder: Path, files: dict[str, str | bytes], version: str = "0.9.1") -> Path:
    path = folder / f"sglang-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"sglang-{version}.dist-info/METADATA", f"Name: sglang\nVersion: {version}\n")
        for name, text in files.items():
            archive.writestr(name, dedent(text) if isinstance(text, str) else text)
    return path


def setter(body: str, kind: str = "eagle3", before: str = "") -> str:
    """A model file with one class `M` whose setter has this body."""
    lines = indent(dedent(body).strip(), " " * 8)
    return f"{dedent(before)}\nclass M:\n    def set_{kind}_layers_to_capture(self, layer_ids=None):\n{lines}\n"


def run_one(path: Path) -> SetterReport:
    return run_setters(path, ids=[EXPLICIT])


def case_of(report: SetterReport, class_name: str, ids: tuple[int, ...] | None = EXPLICIT) -> SetterCase:
    assert report.ok, report.format()
    (found,) = [case for case in report.cases if case.class_name == class_name and case.ids == ids]
    return found


def gap_of(report: SetterReport) -> str:
    assert not report.ok
    assert not report.cases
    return report.unsupported[0].reason


def test_plus_one_is_executed_for_every_list_of_ids(wheel):
    report = run_setters(wheel(plain=PLAIN))
    assert report.version == "0.9.1"
    assert [case.ids for case in report.cases] == list(DEFAULT_IDS)
    assert [case.stored for case in report.cases] == [(2, 18, 33), (25, 31, 37), (2, 18, 33), (3, 19, 34), (2, 18, 36)]
    assert all(case.flagged is None and case.error is None and case.num_layers == 36 for case in report.cases)


def test_the_number_of_layers_reaches_every_nesting_of_the_config(wheel):
    source = setter(
        """
        n = self.config.text_config.llm_config.num_hidden_layers
        self.model.layers_to_capture = [n, self.config.num_hidden_layers, len(self.model.layers), self.end_layer]
        """
    )
    assert case_of(run_setters(wheel(m=source), num_layers=12, ids=[None]), "M", None).stored == (12, 12, 12, 12)


def test_flagging_every_layer_runs_over_the_end(wheel):
    report = run_setters(wheel(flag=FLAGGING))
    last = case_of(report, "FlagForCausalLM", (1, 17, 35))
    assert (last.stored, last.flagged, last.error) == (None, None, "IndexError")
    inside = case_of(report, "FlagForCausalLM")
    assert (inside.stored, inside.flagged, inside.error) == ((2, 18, 33), (2, 18, 33), None)
    assert case_of(report, "FlagForCausalLM", None).error == "TypeError"


def test_a_bound_check_raises_value_error(wheel):
    source = setter(
        """
        if layer_ids is None or any(i >= len(self.model.layers) for i in layer_ids):
            raise ValueError(f"{layer_ids} out of range")
        self.model.dspark_layers_to_capture = set(layer_ids)
        """,
        kind="dspark",
    )
    report = run_setters(wheel(m=source), ids=[None, (24, 30, 36), (33, 2)])
    assert [case.error for case in report.cases] == ["ValueError", "ValueError", None]
    assert report.cases[2].stored == (2, 33)


def test_an_inherited_setter_from_another_file_is_covered(wheel):
    child = "from sglang.srt.models.plain import PlainForCausalLM as Base\nclass Child(Base):\n    pass\n"
    path = wheel(plain=PLAIN, child=child)
    assert case_of(run_one(path), "Child").stored == (2, 18, 33)
    (source,) = [found for found in read_setters(path) if found.class_name == "Child"]
    assert source.inherited
    assert (source.module, source.owner_module, source.owner_class) == ("child", "plain", "PlainForCausalLM")


def test_relative_imports_subpackages_and_module_aliases_are_followed(wheel):
    files = {
        "pack/__init__": "",
        "pack/base": PLAIN,
        "pack/mid": "from .base import PlainForCausalLM\nclass Mid(PlainForCausalLM): ...\n",
        "top": "from sglang.srt.models.pack import mid as m\nclass Top(m.Mid): ...\n",
    }
    report = run_one(wheel(**files))
    assert {case.module for case in report.cases} == {"pack.base", "pack.mid", "top"}
    assert case_of(report, "Top").stored == (2, 18, 33)


def test_super_runs_the_base_setter(wheel):
    child = """
    from sglang.srt.models.plain import PlainForCausalLM
    class Child(PlainForCausalLM):
        def set_eagle3_layers_to_capture(self, layer_ids=None):
            super().set_eagle3_layers_to_capture([i + 10 for i in layer_ids])
    """
    assert case_of(run_one(wheel(plain=PLAIN, child=child)), "Child").stored == (12, 28, 43)


WRAPPERS = {
    "named": "self.language_model = FlagForCausalLM(config)",
    "local": "cls = FlagForCausalLM\n        self.language_model = cls(config)",
    "made": "self.language_model = self.make(config)",
    "attribute": "self.language_model = self.body_cls(config)",
}


@pytest.mark.parametrize("init", WRAPPERS.values(), ids=WRAPPERS.keys())
def test_a_wrapper_is_followed_to_the_inner_setter(wheel, init):
    source = f"""
from sglang.srt.models.flag import FlagForCausalLM
class Wrapper:
    body_cls = FlagForCausalLM
    def __init__(self, config):
        {init}
    def make(self, config):
        return FlagForCausalLM(config)
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if hasattr(self.language_model, "set_eagle3_layers_to_capture"):
            self.language_model.set_eagle3_layers_to_capture(layer_ids)
"""
    found = case_of(run_one(wheel(flag=FLAGGING, wrapper=source)), "Wrapper")
    assert (found.stored, found.flagged, found.delegated_to) == ((2, 18, 33), (2, 18, 33), None)


def test_the_class_that_a_derived_init_passes_wins_over_the_default(wheel):
    source = """
    from sglang.srt.models.flag import FlagForCausalLM
    class PlainBody:
        pass
    class Derived(FlagForCausalLM):
        def __init__(self, config):
            super().__init__(config, body_cls=PlainBody)
    """
    report = run_one(wheel(flag=FLAGGING, derived=source))
    assert case_of(report, "Derived").error == "AttributeError"  # PlainBody really has no such setter
    assert case_of(report, "FlagForCausalLM").error is None


def test_two_possible_inner_classes_with_different_outcomes_are_unsupported(wheel):
    source = """
    from sglang.srt.models.flag import FlagForCausalLM, FlagModel
    class Wrapper:
        def __init__(self, config):
            cls = FlagForCausalLM if config.shifted else FlagModel
            self.model = cls(config)
        def set_eagle3_layers_to_capture(self, layer_ids=None):
            self.model.set_eagle3_layers_to_capture(layer_ids)
    """
    (gap,) = run_one(wheel(flag=FLAGGING, wrapper=source)).unsupported
    assert gap.class_name == "Wrapper"
    assert re.search(r"class of self\.model = .*FlagModel it stores \[1, 17, 32\]", gap.reason)
    assert "else it stores [2, 18, 33]" in gap.reason


def test_an_inner_model_of_unknown_class_is_reported_as_delegated(wheel):
    source = setter("self.model.set_eagle3_layers_to_capture([i + 1 for i in layer_ids])")
    found = case_of(run_one(wheel(m=source)), "M")
    assert found.stored is None
    assert (found.delegated_to, found.delegated_ids) == ("self.model.set_eagle3_layers_to_capture", (2, 18, 33))


def test_helper_functions_and_constants_of_another_module_are_executed(tmp_path):
    before = "from sglang.srt.utils.ids import shifted"
    utils = "OFFSET = 3\ndef shifted(ids: list[int]):\n    return [i + OFFSET for i in ids]\n"
    model = setter("self.model.layers_to_capture = shifted(layer_ids)", before=before)
    files = {"sglang/srt/utils/ids.py": utils, f"{MODELS}/m.py": model}
    assert case_of(run_one(build_wheel(tmp_path, files)), "M").stored == (4, 20, 35)


def test_properties_of_the_class_are_executed(wheel):
    source = setter("self.layers[0]._is_layer_to_capture = True\nself.taps_layers_to_capture = list(layer_ids)")
    source += "    @property\n    def layers(self):\n        return self.model.layers[5:]\n"
    found = case_of(run_one(wheel(m=source)), "M")
    assert (found.stored, found.flagged) == (EXPLICIT, (5,))


def test_a_list_that_init_creates_may_be_changed_in_place(wheel):
    source = setter("self.layers_to_capture.extend(layer_ids)")
    source += "    def __init__(self):\n        self.layers_to_capture = []\n"
    assert case_of(run_one(wheel(m=source)), "M").stored == EXPLICIT


def test_an_unknown_attribute_that_does_not_matter_is_tried_both_ways(wheel):
    source = setter(
        """
        self.taps_layers_to_capture = list(layer_ids)
        for layer in self.layers:
            layer.fusable = layer.fusable and layer.layer_id not in self.taps_layers_to_capture
        """
    )
    assert case_of(run_one(wheel(m=source)), "M").stored == EXPLICIT


UNSUPPORTED = {
    "import": ("import os\nself.model.layers_to_capture = list(layer_ids)", "imports"),
    "open": ("open('x', 'w')\nself.model.layers_to_capture = list(layer_ids)", "builtin open"),
    "dunder import": ("__import__('os')", "builtin __import__"),
    "dunder attribute": ("().__class__.__base__.__subclasses__()", "__subclasses__|__base__|__class__"),
    "dynamic dunder": ("getattr(layer_ids, '__cl' + 'ass__')", "__class__"),
    "swallowed": ("try:\n    self.model.tap()\nexcept:\n    self.model.layers_to_capture = [1]", r"calls self\.model"),
    "unknown number": ("self.model.layers_to_capture = [i + self.model.offset for i in layer_ids]", "offset"),
    "unknown flag": ("self.model.layers_to_capture = [1] if self.model.odd else [2]", r"self\.model\.odd = true"),
    "unknown none": ("self.model.layers_to_capture = [1] if self.tap is None else [2]", "self.tap is None"),
    "unknown append": ("self.model.layers_to_capture.append(1)", "append"),
    "no ids": ("self.model.layers_to_capture = ['a']", "no layer id"),
    "two answers": ("self.layers_to_capture = [1]\nself.model.layers_to_capture = [2]", "different lists"),
    "recursion": ("self.set_eagle3_layers_to_capture(layer_ids)", "recursion"),
    "memory": ("self.model.layers_to_capture = [1] * 10**12", "MemoryError"),
}


@pytest.mark.parametrize(("body", "reason"), UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_what_the_fake_cannot_tell_is_unsupported_and_no_result(wheel, body, reason):
    assert re.search(reason, gap_of(run_one(wheel(m=setter(body)))))


def test_module_level_code_is_never_run(wheel, tmp_path):
    target = tmp_path / "written"
    source = f"open({str(target)!r}, 'w').write('x')\nraise SystemExit\n{PLAIN}"
    assert case_of(run_one(wheel(m=source)), "PlainForCausalLM").stored == (2, 18, 33)
    assert not target.exists()


def test_a_setter_under_a_condition_is_not_overlooked(wheel):
    hidden = "class H:\n    if True:\n        def set_dflash_layers_to_capture(self, layer_ids): ...\n"
    (gap,) = run_one(wheel(plain=PLAIN, hidden=hidden)).unsupported
    assert (gap.module, gap.kind, gap.every_ids) == ("hidden", "dflash", True)
    assert "line 3" in gap.reason


def test_an_endless_loop_times_out_and_the_setter_is_named(wheel):
    with pytest.raises(SetterRunError, match=r"not done after 2 s, at sglang\.srt\.models\.m:M\.set_eagle3"):
        run_setters(wheel(m=setter("while True:\n    pass")), timeout=2)


def test_a_file_that_is_no_zip_is_refused(tmp_path):
    path = tmp_path / "sglang-1-py3-none-any.whl"
    path.write_text("no zip")
    for wrong in (path, tmp_path / "missing.whl"):
        with pytest.raises(SetterRunError, match="no readable wheel"):
            run_setters(wrong)


def test_a_wheel_of_something_else_is_refused(tmp_path):
    with pytest.raises(SetterRunError, match=r"holds no sglang/srt/models/\*\.py"):
        run_setters(build_wheel(tmp_path, {"vllm/models/llama.py": PLAIN}))


REFUSED = {
    "no setter": ("class M:\n    def forward(self): ...\n", "no set_"),
    "syntax": ("class :\n", r"models\.m does not parse"),
    "huge": ("#" * (5 << 20), "over the limit"),
}


@pytest.mark.parametrize(("source", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_unusable_sources_are_refused(wheel, source, message):
    with pytest.raises(SetterRunError, match=message):
        run_setters(wheel(m=source))


def test_undecodable_source_is_refused(tmp_path):
    with pytest.raises(SetterRunError, match=r"cannot read sglang/srt/models/m\.py"):
        run_setters(build_wheel(tmp_path, {f"{MODELS}/m.py": b"\xff\xfe"}))


@pytest.mark.parametrize("wrong", [{"num_layers": 0}, {"ids": []}, {"ids": [("a",)]}, {"timeout": 0}])
def test_wrong_arguments_are_named(wheel, wrong):
    with pytest.raises(SetterRunError, match=next(iter(wrong))):
        run_setters(wheel(plain=PLAIN), **wrong)

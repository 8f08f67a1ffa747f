"""The fixture layer_dump: a recording into the folder of a test."""

from __future__ import annotations

import importlib.util

import pytest

from tests.plugin.support import WORKERS, Run

# Asked without importing it: pytester forgets modules that a test imported, and torch cannot be imported twice.
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

FIXTURE = """
from pathlib import Path

import pytest


@pytest.fixture
def model():
    import torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed_tokens = torch.nn.Embedding(16, 4)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

        def forward(self, input_ids):
            hidden = self.embed_tokens(input_ids)
            for layer in self.layers:
                hidden = layer(hidden)
            return hidden

    return Model()


@pytest.fixture
def tokens():
    import torch

    return torch.arange(6)[None]


def test_layers(layer_dump, model, tokens, tmp_path):
    from specalign.dump.reader import open_specalign

    with layer_dump(model, layers=[2]) as recording:
        model(tokens)
    (info,) = open_specalign(recording.path).infos()
    assert recording.path.parent == tmp_path
    assert set(info.tensors) == {"boundary.0", "boundary.3"}
    assert recording.stats.kept_up
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_two_dumps_of_one_test_have_two_folders(layer_dump, model, tokens):
    paths = []
    for options in ({}, {}, {"name": "last"}):
        with layer_dump(model, mode="fingerprint", **options) as recording:
            model(tokens)
        paths.append(recording.path)
    assert [path.name for path in paths] == ["layers0", "layers1", "last"]


def test_what_cannot_be_recorded_is_an_error(layer_dump, model):
    from specalign.recorder import RecordError

    with pytest.raises(RecordError, match="a 3-layer target"):
        layer_dump(model, layers=[3])
"""


@needs_torch
@pytest.mark.parametrize("workers", WORKERS)
def test_the_fixture_records_into_the_folder_of_the_test(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(FIXTURE)
    run(*workers).assert_outcomes(passed=3)


def test_the_fixture_without_torch_fails_in_one_line(run: Run, pytester: pytest.Pytester) -> None:
    run.hide("torch")
    pytester.makepyfile("def test_layers(layer_dump): ...\n")
    result = run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["the fixture layer_dump needs torch: pip install 'pytest-specalign[[]torch]'"])

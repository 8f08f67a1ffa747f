"""The fixture deterministic: seeds out of the node id, settings under which bits repeat, everything put back afterwards."""

from __future__ import annotations

import hashlib
import importlib.util

import pytest

from tests.plugin.support import WORKERS, Run

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

SEEDS = """
import random

import numpy
import pytest

SEEDS = []


@pytest.mark.parametrize("x", ["a", "b@c"])
def test_seed(deterministic, x, record_property):
    draws = random.random(), numpy.random.random()
    try:
        import torch
    except ModuleNotFoundError:
        pass
    else:
        assert torch.initial_seed() == deterministic.seed
        draws += (torch.rand(1).item(),)
    rng = numpy.random.RandomState(deterministic.seed)
    assert draws[:2] == (random.Random(deterministic.seed).random(), rng.random())
    record_property("seed", deterministic.seed)
    record_property("draws", draws)


class TestIt:
    @pytest.mark.xdist_group("one")
    def test_seed(self, deterministic, record_property):
        record_property("seed", deterministic.seed)
"""

NODES = ["test_it.py::test_seed[a]", "test_it.py::test_seed[b@c]", "test_it.py::TestIt::test_seed"]


def _seeds(pytester: pytest.Pytester) -> list[int]:
    import xml.etree.ElementTree as Xml

    properties = Xml.parse(pytester.path / "out.xml").iter("property")
    return sorted(int(found.attrib["value"]) for found in properties if found.attrib["name"] == "seed")


@pytest.mark.parametrize("workers", [*WORKERS, pytest.param(("-n2", "--dist=loadgroup"), marks=WORKERS[1].marks, id="groups")])
def test_the_seed_is_the_stated_hash_of_the_node_id_however_the_test_is_run(
    run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_it=SEEDS)
    pytester.makeini("[pytest]\nmarkers =\n    xdist_group: a group\njunit_family = xunit1\n")
    run("-Werror", "--junit-xml=out.xml", *workers).assert_outcomes(passed=3)
    digests = [hashlib.sha256(b"specalign.seed/1\n" + node.encode()).digest() for node in NODES]
    assert _seeds(pytester) == sorted(d[0] | d[1] << 8 | d[2] << 16 | d[3] << 24 for d in digests)


def test_without_torch_there_are_still_seeds(run: Run, pytester: pytest.Pytester) -> None:
    run.hide("torch")
    pytester.makepyfile(test_it=SEEDS)
    run("-Wignore").assert_outcomes(passed=3)


STATE = """
import os
import random
import warnings

import numpy
import pytest
import torch

NODES = [(b, op) for b, op in [("generic", "all"), ("cuda", "all"), ("mkldnn", "all")]]
LEAVES = [(b, op) for b in ("cuda", "mkldnn") for op in ("matmul", "conv", "rnn")]
has_new = hasattr(torch._C, "_get_fp32_precision_getter")


def call(f, *args):
    try:
        return f(*args)
    except RuntimeError as error:
        return str(error)[:40]


def look():
    "Everything that can be read, the new precisions below each other too."
    m, c = torch.backends.cuda.matmul, torch.backends.cudnn
    seen = {
        "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        "algorithms": (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "cudnn": (c.benchmark, c.deterministic, c.enabled),
        "fp16": (m.allow_fp16_reduced_precision_reduction, getattr(m, "allow_fp16_reduced_precision_reduction_split_k", None)),
        "bf16": (m.allow_bf16_reduced_precision_reduction, getattr(m, "allow_bf16_reduced_precision_reduction_split_k", None)),
        "accumulation": getattr(m, "allow_fp16_accumulation", None),
        "sdp": torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed(),
        "tf32": (call(lambda: m.allow_tf32), call(lambda: c.allow_tf32), call(torch.get_float32_matmul_precision)),
        "inductor": __import__("torch._inductor.config")._inductor.config.deterministic,
    }
    if has_new:
        get, put = torch._C._get_fp32_precision_getter, torch._C._set_fp32_precision_setter
        for node in NODES:
            seen[node] = get(*node)
            put(*node, "none")
        for node in LEAVES:
            seen[node] = get(*node)
        for node in NODES:
            put(*node, seen[node])
    return seen


def draws():
    "The next random numbers, without taking them."
    python, np, cpu = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    seen = random.random(), numpy.random.random(), torch.rand(1).item(), torch.initial_seed(), numpy.random.randn()
    random.setstate(python), numpy.random.set_state(np), torch.set_rng_state(cpu)
    seed = torch.cuda._lazy_seed_tracker
    return (*seen, seed.manual_seed_all_cb, seed.manual_seed_cb, list(seed.call_order))


def new(backend, op, value):
    if has_new:
        torch._C._set_fp32_precision_setter(backend, op, value)


def untouched():
    pass


def old_flags():
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    torch.use_deterministic_algorithms(False, warn_only=True)
    torch.cuda.manual_seed_all(3)


def medium():
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":0:0"
    torch.cuda.manual_seed(4)


def new_flags():
    new("generic", "all", "tf32")
    new("cuda", "matmul", "none")
    new("mkldnn", "all", "bf16")
    new("cuda", "conv", "none")
    new("mkldnn", "rnn", "ieee")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def mixed_flags():
    torch.backends.cudnn.allow_tf32 = False
    new("cuda", "rnn", "tf32")
    torch.set_float32_matmul_precision("highest")
    new("cuda", "matmul", "tf32")
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
    torch.use_deterministic_algorithms(True)
    torch.random.manual_seed(8), random.random(), numpy.random.randn()


STARTS = [untouched, old_flags, medium, new_flags, mixed_flags]


@pytest.fixture(params=STARTS)
def before(request):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        request.param()
        settings, numbers = look(), draws()
    yield settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert look() == settings
        assert draws() == numbers


def check_inside(before):
    workspace = ":16:8" if before["workspace"] == ":16:8" else ":4096:8"
    split = before["fp16"][1], before["bf16"][1]
    expected = {
        "workspace": workspace, "algorithms": (True, False), "fill": True, "cudnn": (False, True, True),
        "fp16": (False, split[0]), "bf16": (False, split[1]), "accumulation": False, "sdp": False,
        "tf32": (False, False, "highest"), "inductor": True,
    }
    if has_new:
        expected |= dict.fromkeys(NODES + LEAVES, "ieee")
    assert look() == expected
    assert torch.empty(3).isnan().all()


def test_settings(before, deterministic):
    check_inside(before)


def test_all_is_put_back_after_a_failure(before, deterministic):
    random.random(), torch.rand(1), numpy.random.randn()
    raise RuntimeError("on purpose")


def test_all_is_put_back_after_the_test_changed_it(before, deterministic):
    old_flags()
    new("generic", "all", "tf32")
    new("cuda", "rnn", "ieee")
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = "mine"
    torch.backends.cudnn.deterministic = False
    torch.manual_seed(1)


def test_all_is_put_back_after_a_fixture_that_fails(before, deterministic, fails):
    pass


@pytest.fixture
def fails(deterministic):
    raise RuntimeError("on purpose")


def test_an_operation_without_a_deterministic_version_raises(deterministic):
    with pytest.raises(RuntimeError, match="deterministic"):
        torch.zeros(2).put_(torch.tensor([0, 0]), torch.ones(2))
"""


@needs_torch
@pytest.mark.parametrize("workers", WORKERS)
def test_every_setting_is_set_and_put_back(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(test_state=STATE)
    result = run("-Werror", "-k", "not fail", *workers)
    result.assert_outcomes(passed=11)


@needs_torch
def test_every_setting_is_put_back_after_a_failure(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_state=STATE)
    result = run("-Werror", "-k", "fail")
    result.assert_outcomes(failed=5, errors=5)  # no more errors: those would be of a teardown that found something changed
    result.stdout.no_fnmatch_line("E *AssertionError*")


def test_the_plugin_need_not_be_active_and_a_test_without_the_fixture_is_left_alone(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, random

        def test_with(deterministic):
            global seeded
            seeded = random.getstate()

        def test_without():
            assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
            assert random.getstate() != seeded
        """
    )
    run().assert_outcomes(passed=2)

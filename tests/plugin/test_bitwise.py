"""The mark bitwise: the test function runs N times, and what it observes must have the same bits each time."""

from __future__ import annotations

import pytest

from tests.plugin.support import WORKERS, Run

SAME = """
import numpy
import pytest

calls = []


@pytest.fixture
def value():
    calls.append("fixture")
    return numpy.arange(4, dtype="f4")


@pytest.mark.bitwise(runs=3)
@pytest.mark.parametrize("scale", [1, 2])
def test_same(bitwise, value, scale):
    calls.append(scale)
    bitwise.observe("scaled", value * scale)
    bitwise.observe("tree", {"a": [value]})


@pytest.mark.bitwise
class TestIt:
    def test_twice(self, bitwise, request):
        calls.append("method")
        request.getfixturevalue("bitwise").observe("x", numpy.ones(1))


def test_once():
    calls.append("once")
    assert calls == ["fixture", 1, 1, 1, "fixture", 2, 2, 2, "method", "method", "once"]
"""


@pytest.mark.parametrize("asked", [(), ("-p", "specalign")], ids=["inert", "active"])
def test_the_function_runs_that_often_with_the_same_fixtures(run: Run, pytester: pytest.Pytester, asked: tuple[str, ...]) -> None:
    pytester.makepyfile(SAME)
    run("-Werror", *asked).assert_outcomes(passed=4)


FAILS = """
import itertools

import numpy
import pytest

count = itertools.count(1)
BITS = numpy.array([[0x3F800000, 0x00000000], [0x7F7FFFFF, 0x00000001]], "u4").view("f4")


@pytest.mark.bitwise(runs=4)
def test_one_bit(bitwise):
    h = BITS.copy()
    if next(count) == 3:
        h.view("u4")[1, 1] = 0x80000003
        h.view("u4")[1, 0] = 0x7F7FFFFD
    bitwise.observe("other", BITS)
    bitwise.observe("h", {"x": h})


@pytest.mark.bitwise
def test_element_type(bitwise):
    bitwise.observe("h", BITS.astype(["f4", "f8"][next(count) % 2]))


@pytest.mark.bitwise
def test_shape(bitwise):
    bitwise.observe("h", BITS.reshape([(4,), (2, 2)][next(count) % 2]))


@pytest.mark.bitwise
def test_names(bitwise):
    bitwise.observe("a", BITS)
    if next(count) % 2:
        bitwise.observe("b", BITS)


@pytest.mark.bitwise
def test_order(bitwise):
    for name in ["ab", "ba"][next(count) % 2]:
        bitwise.observe(name, BITS)


@pytest.mark.bitwise
def test_nothing(bitwise):
    next(count)


@pytest.mark.bitwise
def test_nothing_at_first(bitwise):
    if next(count) % 2 == 0:
        bitwise.observe("a", BITS)


@pytest.mark.bitwise
def test_name_twice(bitwise):
    bitwise.observe("a", BITS)
    bitwise.observe("a", BITS)


@pytest.mark.bitwise
def test_no_tensor(bitwise):
    bitwise.observe("a", None)


@pytest.mark.bitwise
def test_nan(bitwise):
    bitwise.observe("a", BITS * numpy.float32("nan"))


@pytest.mark.bitwise(runs=3)
def test_skips_later(bitwise):
    bitwise.observe("a", BITS)
    if len(seen) == 1:
        pytest.skip("why")
    seen.append(1)


seen = []


@pytest.mark.bitwise(runs=3)
def test_raises_later(bitwise):
    bitwise.observe("a", BITS)
    raised.append(1)
    assert len(raised) < 2


raised = []


@pytest.mark.bitwise
def test_draws(bitwise):
    bitwise.observe("a", numpy.random.random(2))


@pytest.mark.bitwise
def test_swallows(bitwise):
    try:
        bitwise.observe("a", BITS + next(count))
    except BaseException:
        pass
"""

MESSAGES = [
    "test_it.py::test_one_bit: not the same bits in 4 runs:",
    "  run 3, 'h'['x'] (F32 [2, 2]): element [1, 0]: 0x7f7fffff (3.4028234663852886e+38) in run 1, 0x7f7ffffd (*) in run 3, 2 ulp",
    "    2 of 4 elements differ, at most 5 ulp",
    "  run 2, 'h': element type F* in run 1, F* in run 2",
    "  run 2, 'h' (F32): shape [[]*] in run 1, [[]*] in run 2",
    "  run 2 observed * ('a'*), run 1 observed * ('a'*)",
    "  run 2 observed 2 ('?', '?'), run 1 observed 2 ('?', '?')",
    "test_it.py::test_nothing: nothing was observed, so nothing was compared: call bitwise.observe(name, tensor) in the test",
    "E * ValueError: bitwise.observe: 'a' was observed before in this run: *",
    "E * specalign.compare.leaves.NotComparableError: 'a' is None: *",
    "E * specalign.compare.leaves.NotComparableError: 'a' (F32 [[]2, 2]) holds 4 NaN, *",
    "test_it.py::test_skips_later: run 2 of 3 ended with *why*, and run 1 did not",
    "E * bitwise: in run 2 of 3",
    "test_it.py::test_draws: not the same bits in 2 runs:",
    "  next: if it draws random numbers, ask for the fixture deterministic, under which each run draws the same",
]


@pytest.mark.parametrize("workers", WORKERS)
def test_every_difference_fails_by_name(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(test_it=FAILS)
    result = run("-Werror", *workers)
    result.assert_outcomes(failed=14)
    text = result.stdout.str()
    for message in MESSAGES:
        pattern = message.replace("[1, 0]", "[[]1, 0]").replace("F32 [2", "F32 [[]2").replace("['x']", "[[]'x']")
        result.stdout.fnmatch_lines([pattern])
    assert text.count("not the same bits in 4 runs") >= 1


def test_deterministic_rewinds_the_random_numbers_before_each_run(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import random, numpy, pytest

        drawn = []

        @pytest.fixture
        def noise(deterministic):
            return numpy.random.random()

        @pytest.mark.bitwise(runs=3)
        def test_draws(deterministic, noise, bitwise):
            torch = pytest.importorskip("torch")
            bitwise.observe("a", [numpy.random.random(3), numpy.float64(random.random()), torch.rand(3)])
            drawn.append(numpy.random.random())
            assert drawn[-1] == drawn[0] != noise
        """
    )
    run("-Werror").assert_outcomes(passed=1)


def test_a_skip_or_an_expected_failure_in_the_first_run_is_one(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import numpy, pytest

        @pytest.mark.bitwise
        def test_skips(bitwise):
            pytest.skip("why")

        @pytest.mark.bitwise
        def test_xfails(bitwise):
            pytest.xfail("why")

        @pytest.mark.xfail(strict=True)
        @pytest.mark.bitwise
        def test_differs_as_expected(bitwise):
            bitwise.observe("a", numpy.random.random(3))
        """
    )
    run().assert_outcomes(skipped=1, xfailed=2)


def test_the_fixture_without_its_mark_and_outside_of_a_run_is_an_error(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import numpy, pytest

        def test_no_mark(bitwise):
            bitwise.observe("a", numpy.ones(1))

        @pytest.fixture
        def early(bitwise):
            bitwise.observe("a", numpy.ones(1))

        @pytest.mark.bitwise
        def test_early(early, bitwise):
            pass

        @pytest.mark.bitwise
        def test_inert_and_asked_for_in_the_test(request):
            request.getfixturevalue("bitwise").observe("a", numpy.ones(1))
        """
    )
    result = run()
    result.assert_outcomes(errors=2, failed=1)
    result.stdout.fnmatch_lines(
        ["*::test_no_mark: the fixture bitwise compares nothing without its mark; add @pytest.mark.bitwise*"]
    )
    result.stdout.fnmatch_lines(["E * ValueError: bitwise.observe('a'): no run is going on. *"])


def test_a_mark_of_somebody_else_does_nothing_while_the_plugin_is_inert(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        calls = []

        @pytest.fixture
        def bitwise():
            return "mine"

        @pytest.mark.bitwise("and", its=0)
        @pytest.mark.flaky
        def test_theirs(bitwise):
            calls.append(bitwise)
            assert calls == ["mine"]
        """
    )
    pytester.makeini("[pytest]\nmarkers = flaky: reruns\n")
    run("-Werror").assert_outcomes(passed=1)


def test_an_active_plugin_fails_a_marked_test_that_observes_nothing(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n\n@pytest.mark.bitwise\ndef test_it(): pass\n")
    result = run("-p", "specalign")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*::test_it: nothing was observed, *"])

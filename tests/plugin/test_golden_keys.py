"""Keys and folders: no two tests share a golden, and tests that would are refused at collection."""

from __future__ import annotations

import pytest

from tests.plugin.support import WITHOUT_XDIST, WORKERS, Run

CHECK = "    golden.check(tensors=numpy.ones(1))\n"

COLLISIONS = {
    "classes that differ in capitals": (
        f"class TestA:\n    def test_f(self, golden):\n    {CHECK}\nclass Testa:\n    def test_f(self, golden):\n    {CHECK}",
        "test_it.py::Testa::test_f: would share its goldens with test_it.py::TestA::test_f",
    ),
    "functions": (
        f"def test_f(golden):\n{CHECK}\ndef test_F(golden):\n{CHECK}",
        "test_it.py::test_F: would share its goldens with test_it.py::test_f",
    ),
    "parameters": (
        f'@pytest.mark.parametrize("x", ["a", "A"])\ndef test_f(golden, x):\n{CHECK}',
        "test_it.py::test_f[[]A]: would share its goldens with test_it.py::test_f[[]a]",
    ),
    "parameters that add up to one id": (
        '@pytest.mark.parametrize("y", ["c", "b-c"])\n@pytest.mark.parametrize("x", ["a", "a-b"])\n'
        f"def test_f(golden, x, y):\n{CHECK}",
        "test_it.py::test_f[[]*]: would share its goldens with another test of the same id",
    ),
}


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("case", COLLISIONS)
def test_a_collision_fails_collection(run: Run, pytester: pytest.Pytester, case: str, workers: tuple[str, ...]) -> None:
    text, reason = COLLISIONS[case]
    pytester.makepyfile(test_it="import numpy\nimport pytest\n\n" + text)
    result = run("--specalign-golden=new", *workers)
    assert result.ret in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED)
    result.stdout.fnmatch_lines([f"*{reason}*"])
    assert "INTERNALERROR" not in result.stdout.str()
    if workers == WITHOUT_XDIST:  # xdist runs the tests that could be collected, and fails in the end
        assert not (pytester.path / "__golden__").exists()


def test_modules_that_differ_in_capitals_collide(run: Run, pytester: pytest.Pytester) -> None:
    for name in ("test_it", "test_IT"):
        pytester.makepyfile(**{name: f"import numpy\n\ndef test_f(golden):\n{CHECK}"})
    result = run()
    result.stdout.fnmatch_lines(["*test_it.py::test_f: would share its goldens with test_IT.py::test_f*"])
    assert result.ret == pytest.ExitCode.INTERRUPTED


def test_tests_without_goldens_may_be_called_what_they_like(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_f():\n    pass\n\ndef test_F():\n    pass\n")
    run("-p", "specalign").assert_outcomes(passed=2)


SAME_NAMES = """
import numpy
import pytest


def test_f(golden):
    golden.check(tensors=numpy.full(1, 1))


class TestA:
    def test_f(self, golden):
        golden.check(tensors=numpy.full(1, 2))

    class TestB:
        def test_f(self, golden):
            golden.check(tensors=numpy.full(1, 3))


@pytest.mark.parametrize("x", ["a", "b"])
@pytest.mark.parametrize("y", ["a", "b"])
def test_p(golden, x, y):
    golden.check(tensors=numpy.full(1, ord(x) + 1000 * ord(y)))
    golden.check(x, tensors=numpy.full(1, ord(x)))


class TestAll:
    @pytest.mark.parametrize("x", ["a/b", "a:b", "ä", "a b", "x" * 200, "x" * 199 + "y"])
    def test_odd(self, golden, x):
        golden.check(tensors=numpy.full(1, sum(map(ord, x))))
"""


def test_every_test_has_goldens_of_its_own(run: Run, pytester: pytest.Pytester) -> None:
    for folder in ("one", "two"):
        pytester.mkpydir(folder)
        text = SAME_NAMES.replace("numpy.full(1, ", f"numpy.full(1, {len(folder) * ord(folder[0])} + ")
        (pytester.path / folder / "test_it.py").write_text(text)
    run("--specalign-golden=new").assert_outcomes(passed=26)
    run().assert_outcomes(passed=26)  # all values differ: whoever shared a golden would fail now
    names = [path.name for path in (pytester.path / "one" / "__golden__").iterdir()]
    assert len(names) == 17
    assert max(map(len, names)) <= len(".cpu.safetensors") + 120


def test_nothing_is_wrong_with_the_same_file_collected_twice(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=f"import numpy\n\ndef test_f(golden):\n{CHECK}\ndef test_g(golden):\n{CHECK}")
    run("--specalign-golden=new", "test_it.py::test_f", "test_it.py::test_g").assert_outcomes(passed=2)
    run("--keep-duplicates", "test_it.py", "test_it.py").assert_outcomes(passed=4)


@pytest.mark.parametrize("how", ["cli", "env", "ini"])
def test_golden_dir_takes_the_folders_of_the_tests(run: Run, pytester: pytest.Pytester, how: str) -> None:
    pytester.mkpydir("sub")
    (pytester.path / "sub" / "test_it.py").write_text(f"import numpy\n\ndef test_f(golden):\n{CHECK}")
    pytester.makeini(f"[pytest]\n{'specalign_golden_dir = approved' if how == 'ini' else ''}\n")
    args = ["--specalign-golden-dir=approved"] if how == "cli" else []
    env = {"SPECALIGN_GOLDEN_DIR": "approved"} if how == "env" else {}
    run("--specalign-golden=new", *args, **env).assert_outcomes(passed=1)
    assert (pytester.path / "approved" / "sub" / "test_it.py~~test_f.cpu.safetensors").is_file()
    assert not (pytester.path / "sub" / "__golden__").exists()
    run(*args, **env).assert_outcomes(passed=1)


def test_the_goldens_of_an_installed_package_lie_below_rootdir(
    run: Run, pytester: pytest.Pytester, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = tmp_path_factory.mktemp("elsewhere")
    (site / "pack" / "suite").mkdir(parents=True)
    for folder in ("pack", "pack/suite"):
        (site / folder / "__init__.py").touch()
    (site / "pack" / "suite" / "test_it.py").write_text(f"import numpy\n\ndef test_f(golden):\n{CHECK}")
    pytester.makeini("[pytest]\n")
    run.path = [*run.path, str(site)]
    args = ("--pyargs", "pack.suite", f"--rootdir={pytester.path}", "-c", str(pytester.path / "tox.ini"))
    run("--specalign-golden=new", *args).assert_outcomes(passed=1)
    assert (pytester.path / "__golden__" / "pack.suite" / "test_it.py~~test_f.cpu.safetensors").is_file()
    assert not (site / "pack" / "suite" / "__golden__").exists()
    run(*args).assert_outcomes(passed=1)

"""Each option from the command line, the environment and the ini file; the first of them that is set wins whole."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pytest_specalign.options import OPTIONS, Option, get_option, is_active, settings
from tests.plugin.support import WORKERS, Configure, Run


@dataclasses.dataclass(frozen=True)
class Example:
    """Three texts for one option, the value of each, and one text that it refuses."""

    cli: list[str]
    env: str
    ini: str
    values: tuple[object, object, object]
    bad: str = ""


EXAMPLES = {
    "draft": Example(["a/head"], "b/head", "c/head", ("a/head", "b/head", "c/head")),
    "target": Example(["a/big"], "b/big", "c/big", ("a/big", "b/big", "c/big")),
    "engine": Example(
        ["sglang==0.5.23", "vllm"],
        "eagle, llama.cpp",
        "\n  specforge\n  vllm==0.9, modelopt",
        (("sglang==0.5.23", "vllm"), ("eagle", "llama.cpp"), ("specforge", "vllm==0.9", "modelopt")),
        bad=" , ",
    ),
    "kind": Example(["eagle3"], "dflash", "dspark", ("eagle3", "dflash", "dspark"), bad="eagle4"),
    "convention": Example(["boundary"], "output", "hf", ("boundary", "output", "hf"), bad="BOUNDARIES"),
    "flag_ids": Example(["1,17,32"], "2, 18, 33", "-1", ((1, 17, 32), (2, 18, 33), (-1,)), bad="1;17"),
    "ignore": Example(
        ["rope-ignored", "ids-guessed"],
        "norm-ignored",
        "\n  ids-guessed\n  norm-ignored",
        (("rope-ignored", "ids-guessed"), ("norm-ignored",), ("ids-guessed", "norm-ignored")),
        bad=",",
    ),
    "prompts": Example(["p/a.jsonl"], "p/b.jsonl", "p/c.jsonl", (Path("p/a.jsonl"), Path("p/b.jsonl"), Path("p/c.jsonl"))),
    "acceptance_golden": Example(["g/a.json"], "g/b.json", "g/c.json", (Path("g/a.json"), Path("g/b.json"), Path("g/c.json"))),
    "device": Example(["cuda"], "cpu", "cuda", ("cuda", "cpu", "cuda"), bad="tpu"),
    "pp_size": Example(["2"], "4", "8", (2, 4, 8), bad="0"),
    "artifacts": Example(["out/a"], "out/b", "out/c", (Path("out/a"), Path("out/b"), Path("out/c"))),
    "lock_dir": Example(["locks/a"], "locks/b", "locks/c", (Path("locks/a"), Path("locks/b"), Path("locks/c"))),
    "lock_pattern": Example(
        ["gpu{index}.lock"], "{uuid}.lck", "g-{index}", ("gpu{index}.lock", "{uuid}.lck", "g-{index}"), bad="gpu.lock"
    ),
    "lease_timeout": Example(["0"], "1.5", "60", (0.0, 1.5, 60.0), bad="-1"),
    "session_gpus": Example(["1"], "2", "4", (1, 2, 4), bad="0"),
    "rank_timeout": Example(["5"], "0.5", "900", (5.0, 0.5, 900.0), bad="0"),
    "workers": Example(["gpus"], "gpus", "gpus", ("gpus", "gpus", "gpus"), bad="cpus"),
    "gpu_policy": Example(["auto"], "allow", "require", ("auto", "allow", "require"), bad="never"),
    "waivers": Example(["w/a.toml"], "w/b.toml", "w/c.toml", (Path("w/a.toml"), Path("w/b.toml"), Path("w/c.toml"))),
    "report": Example(["a.html"], "b.html", "c.html", (Path("a.html"), Path("b.html"), Path("c.html"))),
    "golden": Example(["new"], "update", "check", ("new", "update", "check"), bad="replace"),
    "golden_dir": Example(["g/a"], "g/b", "g/c", (Path("g/a"), Path("g/b"), Path("g/c"))),
    "golden_force": Example(
        ["a.py::test_f[x]", "b.py::*"],
        "a.py, b.py",
        "\n  a.py\n  b.py::test_g*",
        (("a.py::test_f[x]", "b.py::*"), ("a.py", "b.py"), ("a.py", "b.py::test_g*")),
        bad="**",
    ),
    "artifacts_limit": Example(["1"], "16", "512", (1, 16, 512), bad="0"),
}

every_option = pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)


def _args(option_name: str) -> list[str]:
    flag = next(option.flag for option in OPTIONS if option.name == option_name)
    return [f"{flag}={text}" for text in EXAMPLES[option_name].cli]


def _expected(name: str, source: int, pytester: pytest.Pytester) -> object:
    value = EXAMPLES[name].values[source]
    return pytester.path / value if isinstance(value, Path) else value


def test_every_option_has_an_example() -> None:
    assert [option.name for option in OPTIONS] == list(EXAMPLES)


@every_option
def test_unset(configure: Configure, option: Option) -> None:
    config = configure()
    assert get_option(config, option.name) == (() if option.repeatable else None)
    assert not is_active(config)


@every_option
def test_command_line(configure: Configure, pytester: pytest.Pytester, option: Option) -> None:
    config = configure(*_args(option.name))
    assert get_option(config, option.name) == _expected(option.name, 0, pytester)
    assert settings(config)[option.name].source == option.flag


@every_option
def test_environment(configure: Configure, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, option: Option) -> None:
    monkeypatch.setenv(option.env, EXAMPLES[option.name].env)
    config = configure()
    assert get_option(config, option.name) == _expected(option.name, 1, pytester)
    assert settings(config)[option.name].source == option.env
    assert is_active(config)


@every_option
def test_ini(configure: Configure, pytester: pytest.Pytester, option: Option) -> None:
    pytester.makeini(f"[pytest]\n{option.ini} = {EXAMPLES[option.name].ini}\n")
    config = configure()
    assert get_option(config, option.name) == _expected(option.name, 2, pytester)
    assert settings(config)[option.name].source == f"{option.ini} in tox.ini"
    assert is_active(config)


@every_option
def test_precedence(configure: Configure, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, option: Option) -> None:
    pytester.makeini(f"[pytest]\n{option.ini} = {EXAMPLES[option.name].ini}\n")
    monkeypatch.setenv(option.env, EXAMPLES[option.name].env)
    assert get_option(configure(), option.name) == _expected(option.name, 1, pytester)
    assert get_option(configure(*_args(option.name)), option.name) == _expected(option.name, 0, pytester)


@pytest.mark.parametrize("name", [name for name, example in EXAMPLES.items() if example.bad])
@pytest.mark.parametrize("source", ["command line", "environment", "ini"])
def test_a_bad_value_stops_the_run_and_names_its_source(
    configure: Configure, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str, source: str
) -> None:
    option = next(option for option in OPTIONS if option.name == name)
    bad = EXAMPLES[name].bad
    args = []
    if source == "command line":
        args, place = [f"{option.flag}={bad}"], option.flag
    elif source == "environment":
        monkeypatch.setenv(option.env, bad)
        place = option.env
    else:
        pytester.makeini(f"[pytest]\n{option.ini} = {bad}\n")
        place = f"{option.ini} in tox.ini"
    with pytest.raises(pytest.UsageError, match=f"^{place}: .* is no valid {name}: "):
        configure(*args)


@every_option
def test_an_empty_value_on_the_command_line_is_an_error(configure: Configure, option: Option) -> None:
    with pytest.raises(pytest.UsageError, match=f"^{option.flag}: .* the value is empty$"):
        configure(f"{option.flag}=")


@pytest.mark.parametrize("workers", WORKERS)
def test_a_bad_value_is_one_line_and_no_traceback(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makepyfile("def test_nothing():\n    pass\n")
    result = run(*workers, SPECALIGN_KIND="eagel3")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [
        "ERROR: SPECALIGN_KIND: 'eagel3' is no valid kind: choose one of eagle, eagle3, dflash, dspark"
    ]


@pytest.mark.parametrize("workers", WORKERS)
def test_tests_see_the_options_in_every_process(run: Run, pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makeini("[pytest]\nspecalign_pp_size = 4\nspecalign_artifacts = out\n")
    pytester.makepyfile(
        """
        from pytest_specalign.options import get_option, is_active

        def test_options(pytestconfig):
            assert is_active(pytestconfig)
            assert get_option(pytestconfig, "draft") == "org/head"
            assert get_option(pytestconfig, "engine") == ("sglang", "vllm")
            assert get_option(pytestconfig, "kind") == "eagle3"
            assert get_option(pytestconfig, "pp_size") == 4
            assert get_option(pytestconfig, "artifacts") == pytestconfig.rootpath / "out"
        """
    )
    args = ["--specalign-draft=org/head", "--specalign-engine=sglang", "--specalign-engine=vllm"]
    result = run(*args, *workers, SPECALIGN_KIND="eagle3")
    result.assert_outcomes(passed=1)
    given = "draft=org/head, engine=sglang,vllm, kind=eagle3 (SPECALIGN_KIND), pp_size=4 (specalign_pp_size in tox.ini)"
    result.stdout.fnmatch_lines([f"specalign: *, {given}, artifacts=* (specalign_artifacts in tox.ini)"])


def test_an_ini_path_starts_from_the_ini_file(
    configure: Configure, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\nspecalign_draft = head\nspecalign_target = org/big\n")
    pytester.mkdir("head")
    monkeypatch.chdir(pytester.mkdir("below"))
    config = configure("--rootdir", str(pytester.path), "-c", str(pytester.path / "tox.ini"))
    assert get_option(config, "draft") == str(pytester.path / "head")
    assert get_option(config, "target") == "org/big"


def test_a_toml_list_is_taken_for_a_repeatable_option(configure: Configure, pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml('[tool.pytest.ini_options]\nspecalign_engine = ["sglang", "vllm==0.9"]\nspecalign_pp_size = 2\n')
    config = configure()
    assert get_option(config, "engine") == ("sglang", "vllm==0.9")
    assert get_option(config, "pp_size") == 2


def test_o_overrides_the_ini_file_and_not_the_environment(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_option(configure("-o", "specalign_kind=dflash"), "kind") == "dflash"
    monkeypatch.setenv("SPECALIGN_KIND", "eagle3")
    assert get_option(configure("-o", "specalign_kind=dflash"), "kind") == "eagle3"


def test_an_unknown_name_is_a_key_error(configure: Configure) -> None:
    with pytest.raises(KeyError, match="drafts"):
        get_option(configure(), "drafts")


def test_help_names_all_three_spellings(run: Run) -> None:
    printed = " ".join(run("--help").stdout.str().split())
    for option in OPTIONS:
        assert f"{option.flag}={option.metavar}" in printed
        assert f"[{option.env}, ini: {option.ini}]" in printed

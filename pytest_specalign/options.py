"""The plugin's options: one table, read from the command line, the environment and the ini file, in that order.

`--specalign-pp-size=2`, `SPECALIGN_PP_SIZE=2` and `specalign_pp_size = 2` say the same. The first of the three that is set wins
whole: lists are not merged. An empty environment variable or ini value counts as not set; an empty value on the command line
is an error, since it is mostly a shell variable that somebody forgot.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, overload

import pytest

from pytest_specalign.state import SETTINGS

PLUGIN_NAMES = frozenset({"specalign", "pytest_specalign", "pytest_specalign.plugin"})

GOLDEN_MODES = ("check", "new", "update")

_LINES: Literal["linelist"] = "linelist"
_STRING: Literal["string"] = "string"

Parser = Callable[[str, Path], object]
"""Turns one text into a value, or raises ValueError with what would be valid. The path is the folder that relative paths
start from: the ini file's own for an ini value, otherwise the folder pytest was started in."""


@dataclasses.dataclass(frozen=True)
class Option:
    """One row of the table.

    Attributes:
        name: in the style `pp_size`; the flag, the variable and the ini key follow from it.
        help: for `pytest --help`.
        metavar: the same.
        parse: makes a value of a text.
        repeatable: may be given several times; the value is then a tuple.
        default: what holds where nobody sets it, in words for `--help` and docs/options.md.
    """

    name: str
    help: str
    metavar: str
    parse: Parser
    repeatable: bool = False
    default: str = "none"

    @property
    def flag(self) -> str:
        return "--specalign-" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        return "SPECALIGN_" + self.name.upper()

    @property
    def ini(self) -> str:
        return "specalign_" + self.name


@dataclasses.dataclass(frozen=True)
class Setting:
    """An option that somebody set: its value, and where it came from, in the words that a message can use."""

    option: Option
    value: object
    source: str


def _text(raw: str, base: Path) -> str:
    return raw


def _one_of(*choices: str) -> Parser:
    def parse(raw: str, base: Path) -> str:
        if raw not in choices:
            raise ValueError(f"choose one of {', '.join(choices)}")
        return raw

    return parse


def _positive_int(raw: str, base: Path) -> int:
    try:
        value = int(raw)
    except ValueError:
        value = 0
    if value < 1:
        raise ValueError("give a whole number of at least 1")
    return value


def _seconds(raw: str, base: Path) -> float:
    try:
        value = float(raw)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError("give seconds, 0 or more")
    return value


def _more_seconds(raw: str, base: Path) -> float:
    value = _seconds(raw, base)
    if value == 0:
        raise ValueError("give seconds, more than 0")
    return value


def _lock_pattern(raw: str, base: Path) -> str:
    if not ("{uuid}" in raw or "{index}" in raw) or "/" in raw:
        raise ValueError("give a file name with {uuid} or {index} in it, like gpu{index}.lock")
    return raw


def _ids(raw: str, base: Path) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in raw.split(","))
    except ValueError:
        raise ValueError("give whole numbers with commas between them, like 1,17,32") from None


def _pattern(raw: str, base: Path) -> str:
    if not raw.replace("*", "").strip():
        raise ValueError("name what is meant, like test_router.py::test_scores*")
    return raw


def _path(raw: str, base: Path) -> Path:
    return base / raw


def _path_or_repo_id(raw: str, base: Path) -> str:
    """A path that exists under `base` is made absolute, so that pytest may be started anywhere; `org/name` stays as it is."""
    try:
        return str(base / raw) if (base / raw).exists() else raw
    except OSError as error:  # a name that is too long, say
        raise ValueError(error.strerror or str(error)) from None


OPTIONS = (
    Option("draft", "Draft head to check: config file, folder, or a repo id in the local cache.", "DRAFT", _path_or_repo_id),
    Option("target", "Target model to check it against: the same forms.", "TARGET", _path_or_repo_id),
    Option(
        "engine",
        "Engine to check for, NAME or NAME==VERSION. Repeatable; the variable and the ini value take commas or lines.",
        "NAME[==VERSION]",
        _text,
        repeatable=True,
        default="engines of [tool.specalign], else every engine that is known",
    ),
    Option(
        "kind",
        "Kind of the draft head, where its config leaves it open: eagle, eagle3, dflash or dspark.",
        "KIND",
        _one_of("eagle", "eagle3", "dflash", "dspark"),
        default="read from the config",
    ),
    Option(
        "convention",
        "Convention of the draft head's layer ids, declared by you: boundary, output or hf.",
        "CONVENTION",
        _one_of("boundary", "output", "hf"),
        default="read from the config",
    ),
    Option("flag_ids", "Layer ids that you pass by the engine's own flag, where it has one.", "ID,ID,...", _ids),
    Option(
        "ignore",
        "Code of a finding that is not to be reported. Repeatable; the variable and the ini value take commas or lines.",
        "CODE",
        _text,
        repeatable=True,
        default="ignore of [tool.specalign]",
    ),
    Option("prompts", "Prompts of the acceptance suite: MT-Bench, HumanEval or plain JSONL.", "FILE", _path),
    Option("acceptance_golden", "Golden of the pair, as specalign acceptance --write-golden makes it.", "FILE", _path),
    Option(
        "device",
        "Where the acceptance suite runs the pair; cuda leases a GPU.",
        "cpu|cuda",
        _one_of("cpu", "cuda"),
        default="cpu",
    ),
    Option("pp_size", "Number of pipeline stages that the target is served on.", "N", _positive_int, default="1"),
    Option("artifacts", "Folder that reports and other files of the run are written to.", "DIR", _path),
    Option(
        "lock_dir",
        "Folder of the lock files of GPU leases, one for the whole machine.",
        "DIR",
        _path,
        default="/tmp/specalign-locks",  # noqa: S108  # words for the reader; specalign.leases has the value and says why
    ),
    Option(
        "lock_pattern",
        "Name of a GPU's lock file, with {uuid} or {index} in it.",
        "NAME",
        _lock_pattern,
        default="{uuid}.lock",
    ),
    Option("lease_timeout", "How long a test waits for its GPUs.", "SECONDS", _seconds, default="600"),
    Option("session_gpus", "Lease so many GPUs for the whole session, before torch is imported.", "N", _positive_int),
    Option("rank_timeout", "How long a function may take on the ranks of rank_group.", "SECONDS", _more_seconds, default="300"),
    Option("workers", "With -n auto: one worker for each GPU.", "gpus", _one_of("gpus"), default="xdist's own count"),
    Option(
        "gpu_policy",
        "What a GPU test that did not run means: require fails the run, allow counts it, auto requires where a GPU is visible.",
        "auto|allow|require",
        _one_of("auto", "allow", "require"),
        default="auto",
    ),
    Option("waivers", "TOML file of GPU tests that may be skipped, each with a reason and an expiry date.", "FILE", _path),
    Option("report", "HTML file that gets an overview of the run.", "FILE.html", _path),
    Option(
        "golden",
        "Goldens: check them (check), also write missing ones (new), or all (update).",
        "MODE",
        _one_of(*GOLDEN_MODES),
        default="check",
    ),
    Option("golden_dir", "Folder of the goldens.", "DIR", _path, default="__golden__ beside each test"),
    Option(
        "golden_force",
        "Write only goldens whose key fits, also in CI; * stands for anything. Repeatable; the variable and the ini value take"
        " commas or lines.",
        "PATTERN",
        _pattern,
        repeatable=True,
    ),
    Option("artifacts_limit", "Most MiB of tensors in the artifacts of one failed golden.", "MIB", _positive_int, default="256"),
)


def add_options(parser: pytest.Parser) -> None:
    """Register every row, as an option and as an ini key."""
    group = parser.getgroup("specalign", "specalign: do two engines that run the same model agree to the bit?")
    for option in OPTIONS:
        text = f"{option.help} Default: {option.default}. [{option.env}, ini: {option.ini}]"
        action, ini_type = ("append", _LINES) if option.repeatable else ("store", _STRING)
        group.addoption(option.flag, action=action, dest=option.ini, default=None, metavar=option.metavar, help=text)
        parser.addini(option.ini, option.help, type=ini_type, default=None)


def settings(config: pytest.Config) -> Mapping[str, Setting]:
    """The options that somebody set, by name; read the first time only.

    Raises:
        pytest.UsageError: a value that the option does not take, naming where the value came from.
    """
    if SETTINGS not in config.stash:
        found = (_read(config, option, config.getoption(option.ini, default=None)) for option in OPTIONS)
        config.stash[SETTINGS] = {setting.option.name: setting for setting in found if setting is not None}
    return config.stash[SETTINGS]


@overload
def get_option(config: pytest.Config, name: Literal["draft", "target", "convention"]) -> str | None: ...
@overload
def get_option(config: pytest.Config, name: Literal["kind"]) -> Literal["eagle", "eagle3", "dflash", "dspark"] | None: ...
@overload
def get_option(config: pytest.Config, name: Literal["engine", "ignore", "golden_force"]) -> tuple[str, ...]: ...
@overload
def get_option(config: pytest.Config, name: Literal["pp_size", "session_gpus", "artifacts_limit"]) -> int | None: ...
@overload
def get_option(config: pytest.Config, name: Literal["rank_timeout"]) -> float | None: ...
@overload
def get_option(config: pytest.Config, name: Literal["flag_ids"]) -> tuple[int, ...] | None: ...
@overload
def get_option(
    config: pytest.Config, name: Literal["artifacts", "waivers", "report", "golden_dir", "prompts", "acceptance_golden"]
) -> Path | None: ...
@overload
def get_option(config: pytest.Config, name: Literal["device"]) -> Literal["cpu", "cuda"] | None: ...
@overload
def get_option(config: pytest.Config, name: Literal["gpu_policy"]) -> Literal["auto", "allow", "require"] | None: ...
@overload
def get_option(config: pytest.Config, name: str) -> object: ...
def get_option(config: pytest.Config, name: str) -> Any:
    """The value of an option: None where nobody set it, an empty tuple for a repeatable one.

    Raises:
        KeyError: no option has that name.
        pytest.UsageError: see `settings`.
    """
    by_name = {option.name: option for option in OPTIONS}
    option = by_name[name]
    setting = settings(config).get(name)
    if setting is None:
        return () if option.repeatable else None
    return setting.value


def early_option(config: pytest.Config, name: str) -> object:
    """The value of an option that is not repeatable, also before pytest has read the whole command line and the conftests.

    Raises:
        pytest.UsageError: see `settings`.
    """
    option = next(option for option in OPTIONS if option.name == name)
    setting = _read(config, option, getattr(config.known_args_namespace, option.ini, None))
    return None if setting is None else setting.value


def is_active(config: pytest.Config) -> bool:
    """Whether somebody asked for the plugin: `-p specalign` (also out of addopts or PYTEST_ADDOPTS), PYTEST_PLUGINS, or any of
    its options. Being installed, or named in a conftest's `pytest_plugins`, is not asking."""
    named = {name.strip() for name in config.getoption("plugins", default=None) or ()}
    named.update(name.strip() for name in os.environ.get("PYTEST_PLUGINS", "").split(","))
    return bool(named & PLUGIN_NAMES) or bool(settings(config))


def _read(config: pytest.Config, option: Option, given: str | list[str] | None) -> Setting | None:
    here = config.invocation_params.dir
    if given is not None:
        return _parsed(option, given, option.flag, here)
    from_env = os.environ.get(option.env, "").strip()
    if from_env:
        return _parsed(option, from_env, option.env, here)
    from_ini = _ini_value(config, option)
    if from_ini:
        ini_file = config.inipath
        source = f"{option.ini} in {ini_file.name}" if ini_file else option.ini
        return _parsed(option, from_ini, source, ini_file.parent if ini_file else config.rootpath)
    return None


def _ini_value(config: pytest.Config, option: Option) -> str | list[str]:
    try:
        value = config.getini(option.ini)
    except (TypeError, ValueError) as error:  # pytest's own complaint about the type of a TOML value
        raise pytest.UsageError(f"{option.ini}: {error}") from error
    return value.strip() if isinstance(value, str) else list(value or [])


def _parsed(option: Option, raw: str | list[str], source: str, base: Path) -> Setting:
    texts = _split(raw) if option.repeatable else [raw if isinstance(raw, str) else " ".join(raw)]
    try:
        if not texts or not all(text.strip() for text in texts):
            raise ValueError("the value is empty")
        values = tuple(option.parse(text.strip(), base) for text in texts)
    except ValueError as error:
        raise pytest.UsageError(f"{source}: {raw!r} is no valid {option.name}: {error}") from error
    return Setting(option, values if option.repeatable else values[0], source)


def _split(raw: str | list[str]) -> list[str]:
    lines = raw.splitlines() if isinstance(raw, str) else raw
    return [part.strip() for line in lines for part in line.split(",") if part.strip()]

"""What the plugin prints at the top of a run."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping

import pytest

from pytest_specalign import record
from pytest_specalign.options import Setting, settings
from pytest_specalign.state import ENVIRONMENT


def header(config: pytest.Config) -> list[str]:
    """The header lines of an active plugin: its version, what was set and by whom, the environment, then the GPU policy."""
    given = [_describe(setting) for setting in settings(config).values()]
    lines = [", ".join([f"specalign: {version()}", *given])]
    lines += [f"specalign {name}: {value}" for name, value in environment(config).items()]
    return lines + record.header(config)


def environment(config: pytest.Config) -> Mapping[str, str]:
    """What `pytest_specalign_environment` gathered; the hook is called the first time only.

    Raises:
        pytest.UsageError: a name or a value is no string.
    """
    if ENVIRONMENT not in config.stash:
        gathered: dict[str, str] = {}
        config.hook.pytest_specalign_environment(config=config, environment=gathered)
        for name, value in gathered.items():
            _refuse_non_string(name, value)
        config.stash[ENVIRONMENT] = gathered
    return config.stash[ENVIRONMENT]


def _refuse_non_string(name: object, value: object) -> None:
    if not isinstance(name, str) or not isinstance(value, str):
        raise pytest.UsageError(
            f"pytest_specalign_environment: {name!r} → {value!r}: names and values are strings, so write str(...) in the hook"
        )


def _describe(setting: Setting) -> str:
    value = ",".join(map(str, setting.value)) if isinstance(setting.value, tuple) else setting.value
    origin = "" if setting.source.startswith("--") else f" ({setting.source})"
    return f"{setting.option.name}={value}{origin}"


def version() -> str:
    """Of the installed distribution; `checkout` where there is none."""
    try:
        return importlib.metadata.version("pytest-specalign")
    except importlib.metadata.PackageNotFoundError:
        return "checkout"

"""`[tool.specalign]` of the nearest pyproject.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specalign.layer_ids.files import InputError
from specalign.layer_ids.project import ProjectSettings, read_project_settings

TABLE = '[tool.specalign]\nengines = ["sglang==0.5.23", "vllm"]\nignore = { "ids-guessed" = "é", "d2t-missing@vllm" = "b" }\n'


def write(folder: Path, text: str | bytes) -> Path:
    file = folder / "pyproject.toml"
    file.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
    return file


def test_engines_and_ignored_codes_are_read(tmp_path: Path) -> None:
    write(tmp_path, TABLE)
    settings = read_project_settings(tmp_path)
    assert settings.engines == ("sglang==0.5.23", "vllm")
    assert settings.ignore == {"ids-guessed": "é", "d2t-missing@vllm": "b"}


@pytest.mark.parametrize("text", ["", "[project]\nname = 'x'", "[tool.ruff]\nline-length = 1", "[tool.specalign]"])
def test_a_project_that_says_nothing_has_empty_settings(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    assert read_project_settings(tmp_path) == ProjectSettings((), {})


def test_the_nearest_file_counts_even_when_it_says_nothing(tmp_path: Path) -> None:
    write(tmp_path, TABLE)
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert read_project_settings(inner).engines == ("sglang==0.5.23", "vllm")
    write(inner.parent, "[tool.specalign]\nengines = ['eagle']")
    assert read_project_settings(inner).engines == ("eagle",)
    (inner / "pyproject.toml").mkdir()
    assert read_project_settings(inner).engines == ("eagle",), "a folder of that name is no project file"
    (inner / "pyproject.toml").rmdir()
    write(inner, "")
    assert read_project_settings(inner) == ProjectSettings()


def test_without_any_file_the_settings_are_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "is_file", lambda self: False)
    assert read_project_settings(tmp_path) == ProjectSettings()


def test_a_folder_that_may_not_be_looked_into_has_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Planted, since modes do not stop root, whom CI containers run as.
    real = Path.is_file

    def deny(self: Path) -> bool:
        if self.parent == tmp_path / "secret":
            raise PermissionError(13, "Permission denied")
        return real(self)

    monkeypatch.setattr(Path, "is_file", deny)
    write(tmp_path, TABLE)
    assert read_project_settings(tmp_path / "secret").engines == ("sglang==0.5.23", "vllm")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tool = 3", "[tool.specalign] must be a table with the keys engines and ignore, not 3"),
        (
            "[tool]\nspecalign = '" + "x" * 99 + "'",
            "[tool.specalign] must be a table with the keys engines and ignore, not '" + "x" * 59,
        ),
        (
            "[tool.specalign]\nengines = []\ncolour = 1",
            "[tool.specalign] takes the keys engines and ignore, not engines, colour",
        ),
        (
            "[tool.specalign]\nengines = 'vllm'",
            "[tool.specalign] engines must be a list of names such as 'sglang==0.5.23'",
        ),
        ("[tool.specalign]\nengines = ['vllm', 1]", "[tool.specalign] engines must be a list of names such as 'sglang==0.5.23'"),
        *(
            (
                f"[tool.specalign]\nignore = {ignore}",
                "[tool.specalign] ignore must be a table of code = 'reason': a code without a reason is not ignored",
            )
            for ignore in ("['ids-guessed']", "{ ids-guessed = '' }", "{ ids-guessed = ' ' }", "{ a = 'b', ids-guessed = 1 }")
        ),
    ],
)
def test_a_wrong_table_is_refused_with_file_and_key(tmp_path: Path, text: str, says: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_project_settings(tmp_path)
    assert str(caught.value) == f"{file}: {says}"


@pytest.mark.parametrize(
    ("text", "says"),
    [("a = 1 2", "line 1"), (b"a = '\xff'", "invalid start byte"), ("x = " + "[" * 5000, "recursion")],
)
def test_what_is_no_toml_is_refused_with_the_file(tmp_path: Path, text: str | bytes, says: Any) -> None:
    file = write(tmp_path, text)
    with pytest.raises(InputError) as caught:
        read_project_settings(tmp_path)
    assert str(caught.value).startswith(f"{file}: ")
    assert says in str(caught.value)

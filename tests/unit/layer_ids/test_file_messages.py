"""What is said about a file that cannot be used, word for word: what is wrong, where, and what to do next."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specalign.layer_ids import files
from specalign.layer_ids.files import (
    InputError,
    decode_utf8,
    is_there,
    list_names,
    open_regular,
    parse_json_object,
    quoted,
    read_bounded,
    read_exactly,
    read_json_object,
    shown,
    unreadable,
)

TOO_LONG = "no such file or folder (the name is too long); check the path"
NO_PERMISSION = "no permission to read it; change its mode, or run as a user who may"


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        call()
    return str(caught.value)


# The file itself


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file"), "no such file or folder; check the path"),
        (FileNotFoundError(), "no such file or folder; check the path"),
        (
            NotADirectoryError(errno.ENOTDIR, "Not a directory"),
            "no such file or folder (a part of the path is a file); check the path",
        ),
        (OSError(errno.ELOOP, "Too many links"), "a loop of symbolic links; replace it by the file itself"),
        (PermissionError(errno.EACCES, "Permission denied"), NO_PERMISSION),
        (PermissionError(errno.EPERM, "Not permitted"), NO_PERMISSION),
        (PermissionError(), NO_PERMISSION),
        (OSError(errno.ENAMETOOLONG, "File name too long"), TOO_LONG),
        (OSError(errno.EIO, "Input/output error"), "cannot be read (Input/output error); check the disk and the path"),
        (OSError("odd"), "cannot be read (OSError); check the disk and the path"),
        (TimeoutError(), "cannot be read (TimeoutError); check the disk and the path"),
    ],
)
def test_each_error_of_the_system_has_its_sentence(error: OSError, says: str) -> None:
    assert str(unreadable(Path("config.json"), error)) == f"config.json: {says}"


def test_only_a_missing_file_is_asked_whether_it_is_a_broken_link(tmp_path: Path) -> None:
    link = tmp_path / "config.json"
    link.symlink_to("gone\n")
    broken = f"{link}: a broken link, nothing is at 'gone\\n'; download or copy the file again"
    assert str(unreadable(link, FileNotFoundError(errno.ENOENT, "No such file"))) == broken
    assert str(unreadable(link, PermissionError(errno.EACCES, "Permission denied"))) == f"{link}: {NO_PERMISSION}"


def test_the_one_who_opens_hands_the_path_on(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    missing: list[Callable[[], object]] = [
        lambda: read_json_object(gone),
        lambda: list_names(gone),
        lambda: read_bounded(gone, 9),
    ]
    for call in missing:
        assert refusal(call) == f"{gone}: no such file or folder; check the path"
    unusable = "'a\\x00b': not a usable path (embedded null byte); check the path"
    impossible: list[Callable[[], object]] = [
        lambda: read_json_object(Path("a\0b")),
        lambda: list_names(Path("a\0b")),
        lambda: is_there(Path("a\0b")),
    ]
    for call in impossible:
        assert refusal(call) == unusable


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (stat.S_IFDIR, "a folder"),
        (stat.S_IFIFO, "a pipe"),
        (stat.S_IFCHR, "a device"),
        (stat.S_IFBLK, "a device"),
        (stat.S_IFSOCK, "a socket"),
        (0, "something else"),
    ],
)
def test_what_is_no_regular_file_is_named_and_not_opened(monkeypatch: pytest.MonkeyPatch, kind: int, name: str) -> None:
    says = f"config.json: is {name}, not a regular file, and was not read; give a plain file"
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda *_, **__: os.stat_result((kind | 0o644, *[0] * 9)))
        patch.setattr(os, "open", lambda *_: pytest.fail("opened"))
        said = refusal(lambda: read_json_object(Path("config.json")))
    assert said == says


def test_a_file_is_opened_without_waiting_inheritance_or_a_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    flags: list[int] = []
    real = os.open

    def note(path: Path, given: int) -> int:
        flags.append(given)
        return real(path, given)

    monkeypatch.setattr(os, "open", note)
    with open_regular(tmp_path / "a") as (handle, size):
        assert (type(handle).__name__, size) == ("FileIO", 5)
        assert handle.read() == b"12345"
    assert handle.closed
    assert flags == [os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK]


def test_no_more_than_one_byte_beyond_the_stated_size_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345678")
    asked: list[int] = []

    class Growing:
        """A file that has grown to eight bytes since it was looked at."""

        def read(self, count: int) -> bytes:
            asked.append(count)
            return b"12345678"[:count]

    class Opened:
        def __enter__(self) -> tuple[Growing, int]:
            return Growing(), 5

        def __exit__(self, *_: object) -> None:
            return None

    monkeypatch.setattr(files, "open_regular", lambda path: Opened())
    says = f"{path}: holds more than the 5 bytes of its stated size; copy it to a plain file first"
    assert refusal(lambda: read_bounded(path, 5)) == says
    assert asked == [6]


def test_a_file_over_the_limit_is_named_with_both_sizes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    assert (
        refusal(lambda: read_bounded(path, 4)) == f"{path}: 5 bytes, more than the 4 that are read here; is this the right file?"
    )


def test_a_file_that_got_shorter_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    with open_regular(path) as (handle, _):
        assert read_exactly(handle, 3, path) == b"123"
        says = f"{path}: changed while it was read; run again when nobody writes to it"
        assert refusal(lambda: read_exactly(handle, 3, path)) == says


# Folders


def test_names_are_listed_in_order(tmp_path: Path) -> None:
    for name in ("b", "a", "C", ".d"):
        (tmp_path / name).touch()
    assert list_names(tmp_path) == [".d", "C", "a", "b"]


def test_a_name_exists_even_as_a_broken_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to("gone")
    (tmp_path / "file").touch()
    found = [is_there(tmp_path / name) for name in ("link", "file", "gone", "gone/x", "file/x")]
    assert found == [True, True, False, False, False]
    assert refusal(lambda: is_there(tmp_path / ("x" * 500))).endswith(f"...{'x' * 200}: {TOO_LONG}")

    # Planted, since modes do not stop root, whom CI containers run as.
    def deny(self: Path) -> os.stat_result:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "lstat", deny)
    assert refusal(lambda: is_there(Path("secret"))) == f"secret: {NO_PERMISSION}"


# Text


def test_a_byte_order_mark_is_dropped_or_kept_as_asked() -> None:
    marked = b"\xef\xbb\xbf\xc3\xa9"
    assert (decode_utf8(marked, "x"), decode_utf8(marked, "x", bom=False)) == ("é", "\ufeffé")


@pytest.mark.parametrize("bom", [True, False])
def test_text_in_another_encoding_is_named_with_the_first_wrong_byte(bom: bool) -> None:
    says = "x.json: not UTF-8 text (byte 3); is this a JSON file?"
    assert refusal(lambda: decode_utf8(b"abc\xff", "x.json", bom=bom)) == says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty; download or copy the file again"),
        (" \n\t", "is empty; download or copy the file again"),
        ("{", "the JSON is cut off at line 1, column 2 (Expecting property name enclosed in double quotes);"),
        ('{"a": \n ', "the JSON is cut off at line 2, column 2 (Expecting value);"),
        ('{"a": "b', "the JSON is cut off at line 1, column 7 (Unterminated string starting at);"),
        ('{"a": 1}x', "no valid JSON at line 1, column 9 (Extra data); correct it there"),
        ('{"a": tru}', "no valid JSON at line 1, column 7 (Expecting value); correct it there"),
        ("null", "holds a JSON null, not an object; is this the right file?"),
        ("false", "holds a JSON boolean, not an object; is this the right file?"),
        ("1", "holds a JSON number, not an object; is this the right file?"),
        ("NaN", "holds a JSON number, not an object; is this the right file?"),
        ('"{}"', "holds a JSON string, not an object; is this the right file?"),
        ("[{}]", "holds a JSON list, not an object; is this the right file?"),
        (
            '{"a": {"c": 1, "b": 1, "b": 2, "c": 3}}',
            "the key 'b' stands twice in one object, and readers differ in which they take; remove one",
        ),
        ('{"n": %s}' % ("1234567890123" * 331), "the number 123456789012... has 4303 digits, over 4300; is the file damaged?"),
        ('{"n": 0.%s}' % ("12345678901" * 391), "the number 0.1234567890... has 4303 digits, over 4300; is the file damaged?"),
        ("[" * 100_000, "nested too deep to be read; is this the right file?"),
    ],
    ids=lambda text: text[:30],
)
def test_unusable_json_is_named_with_place_and_remedy(text: str, says: str) -> None:
    message = refusal(lambda: parse_json_object(text, "x.json"))
    assert message.startswith(f"x.json: {says}")
    if "cut off" in says:
        assert message == f"x.json: {says} download or copy the file again"
    else:
        assert message == f"x.json: {says}"


def test_a_limit_on_digits_that_the_process_has_set_is_said() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert parse_json_object('{"n": %s}' % ("9" * 640), "x.json") == {"n": 10**640 - 1}
        assert refusal(lambda: parse_json_object('{"n": %s}' % ("9" * 641), "x.json")).startswith(
            "x.json: Exceeds the limit (640"
        )
        says = "x.json: the number 999999999999... has 4301 digits, over 4300; is the file damaged?"
        assert refusal(lambda: parse_json_object('{"n": %s}' % ("9" * 4301), "x.json")) == says
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": ["\\ud800b"]}', "the text '\\ud800b' holds half a surrogate pair, which is no Unicode; correct it there"),
        ('{"a": {"\\ud800b": 1}}', "the text '\\ud800b' holds half a surrogate pair, which is no Unicode; correct it there"),
        ('{"a": ' + "[" * 100 + "]" * 100 + "}", "nested more than 100 levels deep; is this the right file?"),
        ('{"a": ' + '{"a": ' * 99 + "{}" + "}" * 100, "nested more than 100 levels deep; is this the right file?"),
        (
            '{"b": 1, "a": ' + "[" * 99 + '1, {"c": 2}' + "]" * 99 + "}",
            "nested more than 100 levels deep; is this the right file?",
        ),
    ],
    ids=["surrogate in a list", "surrogate in a key", "lists", "objects", "an object beside a number"],
)
def test_what_no_program_could_write_again_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert refusal(lambda: read_json_object(path)) == f"{path}: {says}"


def test_values_at_the_deepest_level_are_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": ' + "[" * 99 + '1, "b", null' + "]" * 99 + "}")
    value: object = read_json_object(path)["a"]
    for _ in range(98):
        assert isinstance(value, list)
        value = value[0]
    assert value == [1, "b", None]


# Names


def test_a_path_is_shortened_in_the_middle_beyond_400_characters() -> None:
    assert shown("a" * 200 + "b" * 200) == "a" * 200 + "b" * 200
    assert shown(Path("a" * 200 + "x" + "b" * 200)) == "a" * 200 + "..." + "b" * 200


def test_a_path_stays_on_one_line() -> None:
    assert (shown("é b"), shown("a\nb"), shown("a\u202eb")) == ("é b", "'a\\nb'", "'a\\u202eb'")


def test_a_value_is_quoted_in_at_most_80_characters() -> None:
    assert quoted("a" * 78) == "'" + "a" * 78 + "'"
    assert len(quoted("a" * 79)) == 80
    assert "..." in quoted("a" * 79)

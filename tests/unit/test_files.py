"""The JSON reader: right values, and one clear line for everything that is no usable config."""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specalign.layer_ids import files
from specalign.layer_ids.files import InputError, read_json_object

GIB = 1024**3


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


def refusal(path: Path) -> str:
    """The message of the refusal: one line that opens with the path."""
    with pytest.raises(InputError) as caught:
        read_json_object(path)
    message = str(caught.value)
    assert message.startswith(files.shown(path))
    assert message.isprintable()
    assert len(message) < 1000
    return message


# What is read


def test_an_object_comes_back_as_json_loads_gives_it(config: Path) -> None:
    text = '{"model_type": "gpt_oss", "n": [1, 2.5, null, true, {"ü": "\\u00e9"}], "big": 12345678901234567890}'
    config.write_text(text, encoding="utf-8")
    assert read_json_object(config) == json.loads(text)


def test_a_byte_order_mark_is_tolerated(config: Path) -> None:
    config.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_json_object(config) == {"a": 1}


def test_nan_and_infinity_are_tolerated_because_published_configs_hold_them(config: Path) -> None:
    config.write_text('{"a": NaN, "b": Infinity, "c": -Infinity}')
    value = read_json_object(config)
    assert math.isnan(value["a"])  # type: ignore[arg-type]
    assert (value["b"], value["c"]) == (math.inf, -math.inf)


def test_a_link_to_a_regular_file_is_followed(config: Path, tmp_path: Path) -> None:
    (tmp_path / "blob").write_text('{"a": 1}')
    config.symlink_to("blob")
    assert read_json_object(config) == {"a": 1}


def test_a_file_of_exactly_the_limit_is_read_and_one_byte_more_is_not(config: Path) -> None:
    config.write_text('{"a": 1}')
    assert read_json_object(config, limit=8) == {"a": 1}
    with pytest.raises(InputError, match="8 bytes, more than the 7"):
        read_json_object(config, limit=7)


def test_the_deepest_nesting_allowed_is_read_and_one_level_more_is_not(config: Path) -> None:
    lists = files.MAX_DEPTH - 1  # the object itself is a level
    config.write_text('{"a": ' + "[" * lists + "]" * lists + "}")
    assert "a" in read_json_object(config)
    config.write_text('{"a": ' + "[" * (lists + 1) + "]" * (lists + 1) + "}")
    assert f"more than {files.MAX_DEPTH} levels" in refusal(config)


# What is no file to read


def test_a_missing_file_is_named(config: Path) -> None:
    assert "no such file or folder" in refusal(config)


def test_a_file_below_a_file_is_missing(config: Path) -> None:
    config.write_text("{}")
    assert "no such file or folder" in refusal(config / "config.json")


def test_a_broken_link_names_its_target(config: Path) -> None:
    config.symlink_to("../../blobs/0123abc")
    assert "broken link, nothing is at ../../blobs/0123abc" in refusal(config)


def test_a_loop_of_links_is_refused(config: Path, tmp_path: Path) -> None:
    config.symlink_to("other.json")
    (tmp_path / "other.json").symlink_to("config.json")
    assert "loop of symbolic links" in refusal(config)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "is a folder" in refusal(tmp_path)


def test_a_pipe_is_refused_without_waiting_for_a_writer(config: Path) -> None:
    os.mkfifo(config)
    assert "is a pipe" in refusal(config)


def test_a_device_is_refused(config: Path) -> None:
    config.symlink_to("/dev/zero")
    assert "is a device" in refusal(config)


def test_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name is limited to about 100 characters
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("config.json")
        assert "is a socket" in refusal(Path("config.json"))


def test_a_file_replaced_by_a_pipe_between_look_and_open_is_refused(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("{}")
    real_open = os.open

    def replace_then_open(path: Path, flags: int) -> int:
        config.unlink()
        os.mkfifo(config)
        return real_open(path, flags)

    monkeypatch.setattr(os, "open", replace_then_open)
    assert "is a pipe" in refusal(config)


def test_a_file_that_vanishes_between_look_and_open_is_missing(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("{}")
    real_open = os.open

    def unlink_then_open(path: Path, flags: int) -> int:
        config.unlink()
        return real_open(path, flags)

    monkeypatch.setattr(os, "open", unlink_then_open)
    assert "no such file or folder" in refusal(config)


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), PermissionError()], ids=["system", "bare"])
def test_no_permission_is_said(config: Path, monkeypatch: pytest.MonkeyPatch, error: PermissionError) -> None:
    # The error is planted: CI containers run as root, and modes do not stop root.
    config.write_text("{}")

    def deny(path: Path, flags: int) -> int:
        raise error

    monkeypatch.setattr(os, "open", deny)
    assert "no permission" in refusal(config)


def test_a_disk_that_fails_is_said(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("{}")

    def fail(path: Path, flags: int) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "open", fail)
    assert "cannot be read (Input/output error)" in refusal(config)


def test_a_path_that_no_file_can_have_is_refused() -> None:
    assert "not a usable path" in refusal(Path("a\0b"))
    assert "too long" in refusal(Path("x" * 5000))


def test_a_name_with_a_line_break_stays_on_one_line(tmp_path: Path) -> None:
    assert "\\n" in refusal(tmp_path / "a\nb")


# Bounds


def test_a_sparse_file_of_two_gigabytes_is_refused_at_once_and_unread(config: Path) -> None:
    config.touch()
    os.truncate(config, 2 * GIB)
    tracemalloc.start()
    try:
        start = time.process_time()
        message = refusal(config)
        seconds = time.process_time() - start
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert f"{2 * GIB} bytes, more than the {files.MAX_JSON_BYTES}" in message
    assert peak < 1024**2
    assert seconds < 1


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs procfs: files that state a size of 0 and hold text")
def test_a_file_that_holds_more_than_its_stated_size_is_refused_after_one_byte() -> None:
    assert "more than the 0 bytes of its stated size" in refusal(Path("/proc/self/status"))


# What is no usable JSON


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        (" \n ", "is empty"),
        ('{"a": 1,\n "b": ', "cut off at line 2, column 7"),
        ('{"a": 1,\n "b": "gpt', "cut off at line 2, column 7"),
        ('{"a": [1, 2', "cut off at line 1, column 12"),
        ('{"a": 1} {"b": 2}', "no valid JSON at line 1, column 10"),
        ('{"a": 1,\n "b" 2}', "no valid JSON at line 2, column 6"),
        ("{'a': 1}", "no valid JSON at line 1, column 2"),
        ("[1, 2]", "a JSON list, not an object"),
        ("null", "a JSON null, not an object"),
        ("true", "a JSON boolean, not an object"),
        ("36", "a JSON number, not an object"),
        ("2.5", "a JSON number, not an object"),
        ('"config"', "a JSON string, not an object"),
        ('{"a": "\\ud800"}', "half a surrogate pair"),
        ('{"\\udfff": 1}', "half a surrogate pair"),
    ],
)
def test_unusable_json_is_refused_with_its_place(config: Path, text: str, reason: str) -> None:
    config.write_text(text)
    assert reason in refusal(config)


def test_other_encodings_are_refused(config: Path) -> None:
    config.write_bytes('{"a": 1}'.encode("utf-16"))
    assert "not UTF-8 text (byte 0)" in refusal(config)


def test_a_key_that_stands_twice_is_refused_at_any_depth(config: Path) -> None:
    config.write_text('{"text_config": {"num_hidden_layers": 36, "x": 0, "num_hidden_layers": 24}}')
    assert "'num_hidden_layers' stands twice" in refusal(config)


@pytest.mark.parametrize("number", ["9" * 4301, "-" + "9" * 4300, "0." + "3" * 4300], ids=["int", "negative", "float"])
def test_a_number_of_more_than_4300_digits_is_refused(config: Path, number: str) -> None:
    config.write_text(f'{{"n": {number}}}')
    assert "digits" in refusal(config)


def test_a_number_of_4300_digits_is_read(config: Path) -> None:
    config.write_text('{"n": ' + "9" * 4300 + "}")
    assert read_json_object(config)["n"] == 10**4300 - 1


@pytest.mark.parametrize("digits", [0, 640])
def test_the_limit_on_digits_does_not_depend_on_pythons_own(config: Path, digits: int) -> None:
    config.write_text('{"n": ' + "9" * 5000 + "}")
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(digits)
    try:
        assert "digits" in refusal(config)
        config.write_text('{"n": ' + "9" * 4000 + "}")
        if digits:
            assert "640" in refusal(config)
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")], ids=["lists", "objects"])
def test_deep_nesting_is_refused_and_overflows_no_stack(config: Path, opening: str, closing: str) -> None:
    config.write_text('{"a":' + opening * 200_000 + "1" + closing * 200_000 + "}")
    assert "deep" in refusal(config)


# Fuzzing


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "config.json"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(value=st.dictionaries(st.text(), JSON_VALUES, max_size=5))
def test_every_object_that_json_writes_is_read_back(scratch: Path, value: dict[str, object]) -> None:
    scratch.write_text(json.dumps(value), encoding="utf-8")
    assert repr(read_json_object(scratch)) == repr(value)  # repr, because NaN differs from itself


@settings(deadline=None)
@given(data=st.binary() | st.text(alphabet='{}[]",:0123456789eE+-. \\untrfalsNI', max_size=60).map(str.encode))
@example(b'{"a": 1e999999999}')
@example(b'{"": {"": {"": -0}}}')
@example(b"\xff\xfe{\0}\0")
def test_any_bytes_give_an_object_or_one_clear_line(scratch: Path, data: bytes) -> None:
    scratch.write_bytes(data)
    try:
        value = read_json_object(scratch)
    except InputError:
        assert "config.json" in refusal(scratch)
    else:
        assert isinstance(value, dict)
        json.dumps(value, ensure_ascii=False).encode()  # whatever is returned can be written again


@settings(deadline=None)
@given(value=st.dictionaries(st.text(), JSON_VALUES, min_size=1, max_size=5), data=st.data())
def test_an_object_cut_off_anywhere_is_never_taken_for_whole(
    scratch: Path, value: dict[str, object], data: st.DataObject
) -> None:
    whole = json.dumps(value).encode()
    scratch.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(InputError):
        read_json_object(scratch)

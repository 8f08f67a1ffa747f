"""Reading small files that nobody vouches for: bounded in memory and time, and every failure is one clear line.

A draft head's folder comes from the internet, and `config.json` in it may be anything: two gigabytes, a loop of links, a
pipe that never ends, half a download. Nothing here reads more than its limit, waits, or lets another exception out.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import reprlib
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Final

MAX_JSON_BYTES: Final = 16 * 1024 * 1024
"""Default limit of `read_json_object`, in bytes. Published configs are a few KB."""

MAX_NUMBER_DIGITS: Final = 4300
"""Longest number taken, in characters: Python's own default, enforced here because a process may lift Python's."""

MAX_DEPTH: Final = 100
"""Deepest nesting that `read_json_object` returns, so that recursive code behind it (repr, json.dumps) never overflows."""


class InputError(ValueError):
    """Input that cannot be used. The message says what is wrong, where, and what to do next; the command line exits 2 on it."""


class _RefusedError(ValueError):
    """Why a JSON document is refused, without the place; never leaves this module."""


def read_json_object(path: Path, *, limit: int = MAX_JSON_BYTES) -> dict[str, object]:
    """The JSON object in the file `path`.

    UTF-8, with or without a byte order mark. NaN and Infinity are taken, since published configs hold them.

    Args:
        path: a regular file, or links that end at one.
        limit: the most bytes that are read; a larger file is refused unread.

    Raises:
        InputError: the file is missing, no regular file, unreadable, larger than `limit`, no UTF-8, no valid JSON, no object;
            or it names a key twice, nests deeper than `MAX_DEPTH`, or holds a number of more than `MAX_NUMBER_DIGITS` digits.
    """
    data = read_bounded(path, limit)
    where = shown(path)
    value = parse_json_object(decode_utf8(data, where), where)
    try:
        _check_tree(value)
    except _RefusedError as refused:
        raise InputError(f"{where}: {refused}") from None
    return value


def read_bounded(path: Path, limit: int) -> bytes:
    """All bytes of a regular file of at most `limit` bytes.

    Raises:
        InputError: as `open_regular`; also a file that is larger than `limit`, or longer than its own size says.
    """
    with open_regular(path) as (handle, size):
        if size > limit:
            raise InputError(f"{shown(path)}: {size} bytes, more than the {limit} that are read here; is this the right file?")
        # One byte more than the size tells a file that grows, or one of /proc that never says its size, from a stable one.
        data = handle.read(size + 1)
    if len(data) > size:
        raise InputError(f"{shown(path)}: holds more than the {size} bytes of its stated size; copy it to a plain file first")
    return data


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """`path` opened unbuffered for reading, and its size in bytes. Only a regular file is opened; links are followed.

    Raises:
        InputError: no such file, no regular file, no permission, a loop of links, or the system fails while it is read.
    """
    try:
        # stat before open: opening a pipe waits for a writer, and opening a device may do anything.
        _require_regular(path, os.stat(path).st_mode)  # noqa: PTH116  # much faster than Path.stat
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", buffering=0) as handle:
            status = os.fstat(descriptor)
            _require_regular(path, status.st_mode)  # once more: it may have been replaced in between
            yield handle, status.st_size
    except OSError as error:
        raise unreadable(path, error) from error
    except InputError:
        raise
    except ValueError as error:  # a path with a NUL byte or a lone surrogate
        raise unusable(path, error) from error


def _require_regular(path: Path, mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    kinds: Mapping[int, str] = {
        stat.S_IFDIR: "a folder",
        stat.S_IFIFO: "a pipe",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    kind = kinds.get(stat.S_IFMT(mode), "something else")
    raise InputError(f"{shown(path)}: is {kind}, not a regular file, and was not read; give a plain file")


_REASONS: Final[Mapping[int, str]] = {
    errno.ENOENT: "no such file or folder; check the path",
    errno.ENOTDIR: "no such file or folder (a part of the path is a file); check the path",
    errno.ELOOP: "a loop of symbolic links; replace it by the file itself",
    errno.EACCES: "no permission to read it; change its mode, or run as a user who may",
    errno.EPERM: "no permission to read it; change its mode, or run as a user who may",
    errno.ENAMETOOLONG: "no such file or folder (the name is too long); check the path",
}


def unreadable(path: Path, error: OSError) -> InputError:
    """The `InputError` for a path that the system did not open or read."""
    number = error.errno
    if number is None:  # raised by Python code rather than by the system
        number = (
            errno.EACCES if isinstance(error, PermissionError) else errno.ENOENT if isinstance(error, FileNotFoundError) else 0
        )
    target = _link_target(path) if number == errno.ENOENT else None
    if target is not None:
        return InputError(f"{shown(path)}: a broken link, nothing is at {target}; download or copy the file again")
    reason = _REASONS.get(number) or f"cannot be read ({error.strerror or type(error).__name__}); check the disk and the path"
    return InputError(f"{shown(path)}: {reason}")


def _link_target(path: Path) -> str | None:
    try:
        return shown(path.readlink())
    except OSError:
        return None


def unusable(path: Path, error: ValueError) -> InputError:
    """The `InputError` for a path that no file can have, such as one with a NUL byte."""
    return InputError(f"{shown(path)}: not a usable path ({error}); check the path")


def read_exactly(handle: BinaryIO, count: int, path: Path) -> bytes:
    """The next `count` bytes of a file that was long enough a moment ago.

    Raises:
        InputError: it no longer is.
    """
    data = handle.read(count)
    if len(data) != count:
        raise InputError(f"{shown(path)}: changed while it was read; run again when nobody writes to it")
    return data


def list_names(folder: Path) -> list[str]:
    """The names in a folder, sorted.

    Raises:
        InputError: no such folder, or one that cannot be listed (`Path.glob` would call it empty).
    """
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from error
    except ValueError as error:
        raise unusable(folder, error) from error


def is_there(path: Path) -> bool:
    """Whether a name exists, be it a broken link: who reads it says what is wrong with it.

    Raises:
        InputError: that cannot be told, for want of permission for instance.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise unusable(path, error) from error
    return True


def decode_utf8(data: bytes, where: str, *, bom: bool = True) -> str:
    """`data` as text; a leading byte order mark is dropped if `bom`, else kept (and refused as JSON).

    Raises:
        InputError: no UTF-8; the message opens with `where`.
    """
    try:
        return data.decode("utf-8-sig" if bom else "utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: not UTF-8 text (byte {error.start}); is this a JSON file?") from error


def parse_json_object(text: str, where: str) -> dict[str, object]:
    """The JSON object that `text` holds; no limit on nesting other than Python's own.

    Raises:
        InputError: as `read_json_object`; the message opens with `where`.
    """
    try:
        value: object = json.loads(text, object_pairs_hook=_unique_keys, parse_int=_parse_int, parse_float=_parse_float)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: {_syntax(text, error)}") from error
    except RecursionError:
        raise InputError(f"{where}: nested too deep to be read; is this the right file?") from None
    except _RefusedError as refused:
        raise InputError(f"{where}: {refused}") from None
    if not isinstance(value, dict):
        raise InputError(f"{where}: holds a JSON {_json_type(value)}, not an object; is this the right file?")
    return value


def _syntax(text: str, error: json.JSONDecodeError) -> str:
    if not text.strip():
        return "is empty; download or copy the file again"
    at = f"line {error.lineno}, column {error.colno}"
    # An unterminated string is reported where it starts, anything else that is cut off where the text ends.
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        return f"the JSON is cut off at {at} ({error.msg}); download or copy the file again"
    return f"no valid JSON at {at} ({error.msg}); correct it there"


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    seen: set[str] = set()
    # set.add returns None, so this finds the first key that is already in the set
    twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    raise _RefusedError(f"the key {quoted(twice)} stands twice in one object, and readers differ in which they take; remove one")


def _parse_int(text: str) -> int:
    bounded = _bounded_number(text)
    try:
        return int(bounded)
    except ValueError as error:  # this process set a limit below ours with sys.set_int_max_str_digits
        raise _RefusedError(str(error)) from None


def _parse_float(text: str) -> float:
    return float(_bounded_number(text))


def _bounded_number(text: str) -> str:
    if len(text) > MAX_NUMBER_DIGITS:
        raise _RefusedError(f"the number {text[:12]}... has {len(text)} digits, over {MAX_NUMBER_DIGITS}; is the file damaged?")
    return text


def _check_tree(root: object) -> None:
    """Refuses nesting beyond `MAX_DEPTH` and text that cannot be written out again. No recursion: one level at a time."""
    level, depth = [root], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH and any(isinstance(node, (dict, list)) for node in level):
            raise _RefusedError(f"nested more than {MAX_DEPTH} levels deep; is this the right file?")
        level = [child for node in level for child in _children(node)]


def _children(node: object) -> list[object]:
    if isinstance(node, dict):
        return [*node.keys(), *node.values()]
    if isinstance(node, list):
        return node
    if isinstance(node, str) and not is_unicode(node):
        raise _RefusedError(f"the text {quoted(node)} holds half a surrogate pair, which is no Unicode; correct it there")
    return []


def is_unicode(text: str) -> bool:
    """Whether `text` can be encoded: a JSON escape such as \\ud800 makes a string that no terminal or file takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    names: Mapping[type, str] = {bool: "boolean", int: "number", float: "number", str: "string", list: "list"}
    return names[type(value)]


def shown(path: Path | str) -> str:
    """A path as messages write it: on one line, whatever its name holds, and shortened in the middle beyond 400 characters."""
    text = str(path)
    if len(text) > 400:
        text = f"{text[:200]}...{text[-200:]}"
    return text if text.isprintable() else ascii(text)


def quoted(value: object) -> str:
    """A value out of a file as messages write it: quoted, on one line, short, however long or nested the value is."""
    return _SHORT.repr(value)


_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80

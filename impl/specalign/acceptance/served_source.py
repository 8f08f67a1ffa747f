"""The text behind a file's path or a URL, bounded in size and time."""

from __future__ import annotations

import http.client
import queue
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Final

from specalign.acceptance.errors import AcceptanceError
from specalign.layer_ids.files import InputError, quoted, read_bounded, shown

MAX_BYTES: Final = 64 * 1024 * 1024
"""Of a file, or of a server's answer. A scrape has some 100 KB."""

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ASK: Final = "give the address of its metrics, such as http://localhost:8000/metrics"


def read_source(source: str, timeout: float) -> str:
    """The text of a file, or what a server answers to GET.

    Args:
        source: a path, or a URL of http or https without user and password. Redirections are not followed.
        timeout: seconds for the whole answer, names, connection and reading included; above 0.

    Raises:
        AcceptanceError: the file cannot be read; another scheme; the server is not there, answers another status than 200, too
            much, nothing, HTML, or not in time; the text is not UTF-8.
    """
    scheme = _SCHEME.match(source)
    where = shown(source)
    if scheme is None:
        try:
            data = read_bounded(Path(source), MAX_BYTES)
        except InputError as error:
            raise AcceptanceError(str(error)) from error
    else:
        data = _fetch(source, scheme[1].lower(), timeout)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise AcceptanceError(f"{where}: not UTF-8 (byte {error.start}), so no figures of an engine; {_ASK}") from error
    if not text.strip():
        raise AcceptanceError(f"{where}: empty; is the server up, and is this the right address?")
    if text.lstrip().startswith("<"):
        raise AcceptanceError(f"{where}: HTML or XML, not figures of an engine ({quoted(text.strip()[:60])}); {_ASK}")
    return text


def _fetch(url: str, scheme: str, timeout: float) -> bytes:
    if scheme not in ("http", "https"):
        raise AcceptanceError(f"{shown(url)}: the scheme {scheme} is not read; accepted are http, https and paths of files")
    if not 0 < timeout < threading.TIMEOUT_MAX:
        raise AcceptanceError(f"a timeout of {timeout:g} s is none that can be waited for; give a number of seconds above 0")
    try:
        parts = urllib.parse.urlsplit(url)
        usable = bool(parts.hostname) and (parts.port is None or parts.port > 0) and url.isprintable() and " " not in url
    except ValueError:
        usable = False
        parts = urllib.parse.SplitResult("", "", "", "", "")
    if "@" in parts.netloc:
        raise AcceptanceError(
            "a URL with user and password is not read, since it would stand in logs; scrape to a file, and give that"
        )
    if not usable:
        raise AcceptanceError(f"{shown(url)}: no usable URL; {_ASK}")
    # In a thread of its own: a server that sends a byte now and then keeps every single read within its timeout.
    answer: queue.SimpleQueue[bytes | AcceptanceError] = queue.SimpleQueue()
    threading.Thread(target=lambda: answer.put(_get(url, timeout)), daemon=True).start()
    try:
        found = answer.get(timeout=timeout)
    except queue.Empty:
        found = _late(url, timeout)
    if isinstance(found, AcceptanceError):
        raise found
    return found


def _late(url: str, timeout: float) -> AcceptanceError:
    return AcceptanceError(
        f"{shown(url)}: no whole answer within {timeout:g} s; is the server busy? Give it more time, or another address"
    )


class _Errors(urllib.request.HTTPDefaultErrorHandler):
    """Every status but 2xx is an error, redirections included."""


def _opener() -> urllib.request.OpenerDirector:
    """http and https only: the default one also opens ftp and data, and follows redirections to ftp."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        _Errors(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _get(url: str, timeout: float) -> bytes | AcceptanceError:
    """The body, or why there is none; never raises, since it runs in a thread."""
    until = time.monotonic() + timeout
    chunks, size = [], 0
    try:
        with _opener().open(url, timeout=timeout) as response:
            if response.status != 200:
                return AcceptanceError(f"{shown(url)}: the server answered {response.status} ({response.reason}); {_ASK}")
            stated = response.length  # None where the answer comes in chunks, or ends with the connection
            while chunk := response.read1(1 << 16):
                chunks.append(chunk)
                size += len(chunk)
                if size > MAX_BYTES:
                    return AcceptanceError(f"{shown(url)}: more than the {MAX_BYTES} bytes that are read here; {_ASK}")
                if time.monotonic() > until:
                    return _late(url, timeout)
            if stated is not None and size < stated:
                return AcceptanceError(f"{shown(url)}: the answer broke off after {size} of {stated} bytes; ask again")
    except urllib.error.HTTPError as error:
        error.close()
        to = error.headers.get("Location") if 300 <= error.code < 400 else None
        hint = f"give the address it points to: {quoted(to)}" if to else _ASK
        return AcceptanceError(f"{shown(url)}: the server answered {error.code} ({shown(str(error.reason))}); {hint}")
    except TimeoutError:
        return _late(url, timeout)
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            return _late(url, timeout)
        return AcceptanceError(
            f"{shown(url)}: no answer ({shown(str(error.reason))}); is the server up, and is this its address?"
        )
    except (http.client.HTTPException, OSError, ValueError) as error:
        what = shown(f"{type(error).__name__}: {error}")
        return AcceptanceError(f"{shown(url)}: what answers does not speak HTTP, or broke off ({what}); {_ASK}")
    return b"".join(chunks)

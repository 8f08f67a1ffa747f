"""A server that answers is read; one that answers nonsense, nothing, too late or not at all is one clear error each."""

from __future__ import annotations

import contextlib
import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specalign.acceptance import AcceptanceError, read_scrape, read_served, served_between, served_source

RECORDED = Path(__file__).parent / "served"
BEFORE = (RECORDED / "vllm_before.prom").read_bytes()
AFTER = (RECORDED / "vllm_after.prom").read_bytes()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")


class Server(http.server.ThreadingHTTPServer):
    """Answers with what `pages` holds for a path: a function that is given the handler.

    `released` is set at the end of a test: who hangs waits for it.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages: dict[str, Callable[[Handler], None]] = {}
        self.released = threading.Event()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}{path}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        with contextlib.suppress(OSError):  # whoever asked has gone
            self.server.pages[self.path](self)

    def log_message(self, *args: object) -> None:
        """Silent."""

    def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.released.set()
        made.shutdown()
        thread.join()


def page(server: Server, answer: Callable[[Handler], None]) -> str:
    server.pages["/metrics"] = answer
    return server.url("/metrics")


def test_a_server_is_read_as_a_file_is(server: Server) -> None:
    url = page(server, lambda handler: handler.answer(BEFORE, Content_Type="text/plain; version=0.0.4; charset=utf-8"))
    assert read_served(url) == read_served(str(RECORDED / "vllm_before.prom"))
    assert read_served(url.replace("http://", "HTTP://")).length == 2.5


def test_two_looks_at_a_server(server: Server) -> None:
    bodies = iter([BEFORE, AFTER])
    url = page(server, lambda handler: handler.answer(next(bodies)))
    assert served_between(read_scrape(url), read_scrape(url)).length == 2.0


def test_json_in_chunks(server: Server) -> None:
    def answer(handler: Handler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.send_header("Connection", "close")
        handler.end_headers()
        for part in ((RECORDED / "trtllm_iterations.json").read_bytes()[at : at + 100] for at in range(0, 10_000, 100)):
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(part), part) if part else b"")
        handler.wfile.write(b"0\r\n\r\n")

    assert read_served(page(server, answer)).rounds == 9


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(lambda it: it.answer(b"no", 404), r"the server answered 404 \(Not Found\); give the address of its", id="404"),
        pytest.param(lambda it: it.answer(b"", 500), "the server answered 500", id="500"),
        pytest.param(lambda it: it.answer(b"", 204), "the server answered 204", id="no content"),
        pytest.param(
            lambda it: it.answer(b"", 307, Location="/metrics/"), "answered 307 .*; give the address it points to: '/metrics/'", id="redirected"
        ),
        pytest.param(lambda it: it.answer(b"", 302, Location="ftp://x/y"), "points to: 'ftp://x/y'", id="redirected elsewhere"),
        pytest.param(lambda it: it.answer(b"<!doctype html><p>hi"), "HTML or XML, not figures of an engine", id="HTML"),
        pytest.param(lambda it: it.answer(b"hello"), "no figures of acceptance in it: it begins 'hello'", id="nonsense"),
        pytest.param(lambda it: it.answer(b""), "empty; is the server up", id="nothing"),
        pytest.param(lambda it: it.answer(b" \n"), "empty; is the server up", id="blanks"),
        pytest.param(lambda it: it.answer(b"\xff\xfe"), "not UTF-8", id="no text"),
        pytest.param(lambda it: None, "does not speak HTTP, or broke off .*RemoteDisconnected", id="hangs up"),
        pytest.param(lambda it: it.wfile.write(b"SSH-2.0-x\r\n"), "does not speak HTTP, or broke off .*BadStatusLine", id="no HTTP"),
        pytest.param(
            lambda it: it.answer(BEFORE[:99], Content_Length=str(len(BEFORE))), r"the answer broke off after 99 of \d+ bytes; ask again", id="hangs up in the middle"
        ),
        pytest.param(
            lambda it: it.answer(b"zz\r\n", Transfer_Encoding="chunked", Content_Length="4"), "does not speak HTTP", id="broken chunks"
        ),
        pytest.param(lambda it: it.answer(b"a" * 2000), "more than the 1000 bytes", id="too much"),
    ],
)  # fmt: skip
def test_each_wrong_answer_is_one_clear_error(
    server: Server, monkeypatch: pytest.MonkeyPatch, answer: Callable[[Handler], None], expected: str
) -> None:
    monkeypatch.setattr(served_source, "MAX_BYTES", 1000)
    url = page(server, answer)
    with pytest.raises(AcceptanceError, match=expected) as caught:
        read_served(url)
    assert str(caught.value).startswith(url)
    assert str(caught.value).isprintable()


def hangs(handler: Handler) -> None:
    handler.server.released.wait()


def hangs_in_the_middle(handler: Handler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(BEFORE[:99])
    handler.wfile.flush()
    handler.server.released.wait()


def drips(start: bytes, drop: bytes) -> Callable[[Handler], None]:
    """A byte now and then: no single read takes long."""

    def answer(handler: Handler) -> None:
        handler.wfile.write(start)
        while not handler.server.released.wait(0.02):
            handler.wfile.write(drop)
            handler.wfile.flush()

    return answer


@pytest.mark.parametrize(
    "answer",
    [hangs, hangs_in_the_middle, drips(b"HTTP/1.1 200 OK\r\n", b"a"), drips(b"HTTP/1.1 200 OK\r\n\r\n", b"#")],
    ids=["says nothing", "stops in the middle", "drips headers", "drips a body"],
)
def test_a_server_that_hangs_is_given_up_in_time(server: Server, answer: Callable[[Handler], None]) -> None:
    url, began = page(server, answer), time.monotonic()
    with pytest.raises(AcceptanceError, match=r"no whole answer within 0.3 s; is the server busy"):
        read_served(url, timeout=0.3)
    assert time.monotonic() - began < 5


def test_no_server() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(AcceptanceError, match=rf"^http://127.0.0.1:{port}/metrics: no answer \(.*refused.*\); is the server up"):
        read_served(f"http://127.0.0.1:{port}/metrics")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ftp://localhost/metrics", "the scheme ftp is not read; accepted are http, https and paths"),
        ("file:///etc/hostname", "the scheme file is not read"),
        ("http://", "no usable URL"),
        ("http://localhost:x/metrics", "no usable URL"),
        ("http://localhost:99999/metrics", "no usable URL"),
        ("http://[::1/metrics", "no usable URL"),
        ("http://local host/metrics", "no usable URL"),
        ("http://localhost/a\nb", "no usable URL"),
        ("http://user:secret@localhost/metrics", "a URL with user and password is not read"),
    ],
)
def test_what_is_no_address_of_a_server_is_refused(url: str, expected: str) -> None:
    with pytest.raises(AcceptanceError, match=expected) as caught:
        read_served(url)
    assert "secret" not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_timeout_is_a_time(timeout: float) -> None:
    with pytest.raises(AcceptanceError, match="is none that can be waited for"):
        read_served("http://localhost/metrics", timeout=timeout)


@pytest.mark.parametrize("name", ["missing.prom", ".", "nul\0"])
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(AcceptanceError):
        read_served(str(tmp_path / name))


def test_a_file_too_large_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_source, "MAX_BYTES", 1000)
    (tmp_path / "x").write_bytes(b" " * 1001)
    with pytest.raises(AcceptanceError, match="1001 bytes, more than the 1000 that are read here"):
        read_served(str(tmp_path / "x"))

"""A local web server that does what real ones do: ranges, cut connections, wrong bytes, errors."""

from __future__ import annotations

import http.server
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import IO


@dataclass
class Site:
    """What the server gives, and what it was asked.

    files: content by path; cut_after: bytes sent before each of the next connections is cut; status: instead of 200;
    silent_after: bytes, after which each connection says nothing for so many seconds (`silence`) and is cut; silent:
    has a permit for each connection that has sent them; trickle: seconds before each single byte, of the head too with
    `slow_head`; ranges: whether it knows them; stamp: "ETag" or "Last-Modified", by which a file is known again
    (If-Range); changes: files that are others from a request on, the first being 1; asked: (path, Range header) of
    every request.
    """

    files: dict[str, bytes]
    cut_after: list[int] = field(default_factory=list)
    status: dict[str, int] = field(default_factory=dict)
    ranges: bool = True
    stamp: str = ""
    changes: dict[int, dict[str, bytes]] = field(default_factory=dict)
    silent_after: int = 0
    silence: float = 0.0
    silent: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    trickle: float = 0.0
    slow_head: bool = False
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    address: str = ""


def slowly(file: IO[bytes], content: bytes, site: Site) -> None:
    """A byte at a time, until nobody listens or the site has no patience any more."""
    with suppress(OSError):
        for byte in content:
            file.write(bytes([byte]))
            file.flush()
            time.sleep(site.trickle)
            if not site.trickle:
                return


def stamp_of(content: bytes | None, header: str) -> str:
    """A name or a date that only this content has."""
    number = zlib.crc32(content or b"")
    return {"ETag": f'"{number}"', "Last-Modified": formatdate(number % 10**9, usegmt=True)}.get(header, "")


@contextmanager
def serving(**files: bytes) -> Iterator[Site]:
    """Serve `files` (a keyword `a_gz` is the path /a.gz) on a free port of this machine."""
    site = Site({"/" + name.replace("_", "."): content for name, content in files.items()})

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            header = self.headers.get("Range")
            site.asked.append((self.path, header))
            site.files |= site.changes.get(len(site.asked), {})
            content = site.files.get(self.path)
            stamp = stamp_of(content, site.stamp)
            if stamp and self.headers.get("If-Range", stamp) != stamp:
                header = None  # all of it: it is another file than the one that is there in part
            if self.path in site.status or content is None:
                self.send_error(site.status.get(self.path, 404))
                return
            # Before anything is sent: the next connection may be opened as soon as the head of this one has arrived.
            sent = site.cut_after.pop(0) if site.cut_after else len(content)
            start = int(header.removeprefix("bytes=").rstrip("-")) if header and site.ranges else 0
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            if stamp:
                self.send_header(site.stamp, stamp)
            body = content[start:]
            self.send_header("Content-Length", str(len(body)))
            if site.slow_head:
                slowly(self.wfile, b"X-Slow: " + b"x" * 60_000, site)
                return
            self.end_headers()
            if site.trickle:
                slowly(self.wfile, body, site)
                return
            if site.silent_after:
                self.wfile.write(body[: site.silent_after])
                self.wfile.flush()
                site.silent.release()
                over.wait(site.silence if body[site.silent_after :] else 0.0)
                return
            with suppress(ConnectionError):  # whoever asked for the size alone reads no more
                self.wfile.write(body[:sent])

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    over = threading.Event()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # so that `server_close` waits for all: none speaks in the tests after this one
    site.address = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        over.set()
        site.trickle = 0.0
        server.shutdown()
        server.server_close()
        thread.join()

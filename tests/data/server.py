"""A local web server that does what real ones do: ranges, cut connections, wrong bytes, errors."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Site:
    """What the server gives, and what it was asked.

    files: content by path; cut_after: bytes sent before each of the next connections is cut; status: instead of 200;
    ranges: whether it knows them; asked: (path, Range header) of every request.
    """

    files: dict[str, bytes]
    cut_after: list[int] = field(default_factory=list)
    status: dict[str, int] = field(default_factory=dict)
    ranges: bool = True
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    address: str = ""


@contextmanager
def serving(**files: bytes) -> Iterator[Site]:
    """Serve `files` (a keyword `a_gz` is the path /a.gz) on a free port of this machine."""
    site = Site({"/" + name.replace("_", "."): content for name, content in files.items()})

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            site.asked.append((self.path, wanted))
            content = site.files.get(self.path)
            if self.path in site.status or content is None:
                self.send_error(site.status.get(self.path, 404))
                return
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and site.ranges else 0
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            body = content[start:]
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: site.cut_after.pop(0)] if site.cut_after else body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.address = f"http://127.0.0.1:{server.server_address[1]}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""A mirror of data sets for tests that fetch them."""

from __future__ import annotations

import http.server
import threading
from pathlib import Path


class Mirror:
    """A web server on this machine that serves one folder and counts requests."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        mirror = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def __init__(self, *args: object) -> None:
                super().__init__(*args, directory=str(folder))  # type: ignore[arg-type]

            def log_message(self, *args: object) -> None:
                mirror.asked.append(self.path)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

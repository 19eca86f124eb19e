"""Writes 2 MiB of log before it serves and 100 KiB with every answer; it stands still when nobody takes them."""

import http.server
import sys

LINE = "x" * 200


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        sys.stderr.write(f"srv  log: {LINE}\n" * 500)
        sys.stderr.flush()
        body = b'{"status": "ok"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


sys.stderr.write(f"load: {LINE}\n" * 9000)
sys.stderr.flush()
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()

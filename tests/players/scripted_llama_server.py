"""A llama-server that answers from a script. Run as a program, with the standard library only.

usage: scripted_llama_server.py SCENARIO.json REQUESTS.jsonl [llama-server's own arguments]

SCENARIO.json, all keys optional:

    deaf      true: SIGTERM does not end it
    stderr    lines for the log, written before anything is served; without it, one that says that the layers asked for are on the GPU
    routes    for "GET /health" and the like the replies in their order; the last one repeats
    default   reply of every other path
    help      text of --help; without it, one that offers every flag
    version   text of --version

A reply has `json`, `body` (text) or `body_b64`, and perhaps `status`, `headers` and `delay_s`. With `echo` the `content` of its `json`
is the prompt of the request. With `events` it is a stream of them: each has `json` or `text` and perhaps `delay_s`; with `cut` the
connection ends after the last one without the end of the stream. Or it ends something: `drop` the connection, `exit` with a code, or
die of a `signal`. Every request is first written to REQUESTS.jsonl, with the monotonic time at which it came.
"""

import base64
import json
import signal
import sys
from pathlib import Path
from typing import Any

FLAGS = (
    "--port", "--host", "--model", "--parallel", "--ctx-size", "--no-kv-unified", "--fit", "--threads", "--threads-batch",
    "--gpu-layers", "--flash-attn", "--cache-type-k", "--cache-type-v", "--batch-size", "--ubatch-size", "--metrics", "--offline",
    "--verbosity", "--no-ui", "--no-cache-prompt", "--cache-ram", "--no-cache-idle-slots", "--slot-prompt-similarity", "--model-draft",
    "--spec-type", "--spec-draft-n-max", "--spec-draft-n-min", "--spec-draft-p-min", "--gpu-layers-draft", "--threads-draft",
    "--threads-batch-draft", "--cache-type-k-draft", "--cache-type-v-draft",
)  # fmt: skip
HELP = "".join(f"{flag} VALUE   as scripted\n" for flag in FLAGS) + "   - 3: info\n   - 4: trace (more info)\n"
NOT_FOUND = {"status": 404, "json": {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}}}


def payload(reply: dict[str, Any]) -> bytes:
    if "json" in reply:
        return json.dumps(reply["json"]).encode()
    return base64.b64decode(reply["body_b64"]) if "body_b64" in reply else str(reply.get("body", "")).encode()


def serve(scenario: dict[str, Any], requests: Path, port: int) -> int:
    import http.server
    import os
    import threading
    import time

    waiting = {route: list(replies) for route, replies in scenario.get("routes", {}).items()}
    one_at_a_time = threading.Lock()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body in one packet: two of them wait for each other 40 ms.
        wbufsize = -1

        def log_message(self, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            came = time.monotonic()
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            route = f"{self.command} {self.path}"
            with one_at_a_time:
                key, asked = self.headers.get("Authorization"), json.loads(body or "null")
                record = {"route": route, "key": key, "body": asked, "mono": came}
                with requests.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                replies = waiting.get(route, [scenario.get("default", NOT_FOUND)])
                reply = replies.pop(0) if len(replies) > 1 else replies[0]
            time.sleep(reply.get("delay_s", 0))
            if "exit" in reply:
                os._exit(reply["exit"])
            if "signal" in reply:
                os.kill(os.getpid(), reply["signal"])
                # Another thread may be the one that dies of it first.
                time.sleep(60)
            if reply.get("drop"):
                self.close_connection = True
                return
            if "events" in reply:
                self.stream(reply)
                return
            if reply.get("echo"):
                reply = {**reply, "json": {**reply["json"], "content": str(asked["prompt"])}}
            content = payload(reply)
            self.send_response(reply.get("status", 200))
            for name, value in {"Content-Length": str(len(content)), **reply.get("headers", {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def stream(self, reply: dict[str, Any]) -> None:
            self.send_response(reply.get("status", 200))
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            for event in reply["events"]:
                time.sleep(event.get("delay_s", 0))
                if "exit" in event:
                    os._exit(event["exit"])
                part = (event["text"] if "text" in event else f"data: {json.dumps(event['json'])}\n\n").encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.wfile.flush()
            self.close_connection = bool(reply.get("cut"))
            if not self.close_connection:
                self.wfile.write(b"0\r\n\r\n")

        do_POST = do_GET

    class Listener(http.server.ThreadingHTTPServer):
        # The real one has no patience with a port that somebody holds either.
        allow_reuse_address = False
        daemon_threads = True
        # Requests of a whole round arrive at one instant.
        request_queue_size = 128

    try:
        listener = Listener(("127.0.0.1", port), Handler)
    except OSError:
        print(f"srv start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: {port}", file=sys.stderr)
        return 1
    listener.serve_forever()
    return 0


def main() -> int:
    scenario, requests, arguments = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]), sys.argv[3:]
    if arguments[:1] == ["--help"]:
        print(scenario.get("help", HELP))
        return 0
    if arguments[:1] == ["--version"]:
        print(scenario.get("version", "version: 10621 (c1d0e7a00)"), file=sys.stderr)
        return 0
    if scenario.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    layers = min(29, int(arguments[arguments.index("--gpu-layers") + 1])) if "--gpu-layers" in arguments else 29
    for line in scenario.get("stderr", [f"load_tensors: offloaded {layers}/29 layers to GPU"]):
        print(line, file=sys.stderr, flush=True)
    return serve(scenario, requests, int(arguments[arguments.index("--port") + 1]))


if __name__ == "__main__":
    sys.exit(main())

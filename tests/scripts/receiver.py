"""Webhook receiver for promotions: downloads each new champion and prints its path.

    python receiver.py PORT SECRET_FILE FOLDER

Prints `listening on PORT`, then one line of JSON per delivery. PORT 0 selects a free port.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import mlplatform
from mlplatform.registry import webhooks

port, secret, folder = int(sys.argv[1]), Path(sys.argv[2]).read_text().strip(), Path(sys.argv[3])


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            promotion = webhooks.promotion(dict(self.headers), body, secret)
        except mlplatform.PlatformError as refusal:
            self.answer(403)
            print(json.dumps({"refused": str(refusal)}), flush=True)
            return
        # Answer first: MLflow waits only 30 s, and a model may be large.
        self.answer(204)
        if promotion.alias == "champion":
            fetched = mlplatform.download(f"{promotion.model}/{promotion.version}", folder / promotion.model)
            print(json.dumps({**vars(promotion), "folder": str(fetched)}), flush=True)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()
        self.wfile.flush()

    def log_message(self, *arguments: object) -> None:
        """Suppress the server's own log lines."""


server = HTTPServer(("", port), Receiver)
print(f"listening on {server.server_address[1]}", flush=True)
server.serve_forever()

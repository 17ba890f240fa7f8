"""A program that is told of promotions: it fetches the model that has become champion and says where it lies.

    python receiver.py PORT SECRET_FILE FOLDER

Prints `listening on PORT`, then one line of JSON a message. PORT 0 takes any.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import mlplatform
from mlplatform import webhooks

port, secret, folder = int(sys.argv[1]), Path(sys.argv[2]).read_text().strip(), Path(sys.argv[3])


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            told = webhooks.promotion(dict(self.headers), body, secret)
        except mlplatform.PlatformError as refusal:
            self.answer(403)
            print(json.dumps({"refused": str(refusal)}), flush=True)
            return
        # First the answer, because MLflow waits 30 s for it and a model may be large.
        self.answer(204)
        if told.alias == "champion":
            fetched = mlplatform.download(f"{told.model}/{told.version}", folder / told.model)
            print(json.dumps({**vars(told), "folder": str(fetched)}), flush=True)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()
        self.wfile.flush()

    def log_message(self, *arguments: object) -> None:
        """The lines above say it all."""


server = HTTPServer(("", port), Receiver)
print(f"listening on {server.server_address[1]}", flush=True)
server.serve_forever()

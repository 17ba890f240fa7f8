"""Webhook receiver for promotions: downloads each new champion and prints its path.

    python receiver.py PORT SECRET_FILE FOLDER

Prints `listening on PORT`, then one line of JSON per delivery. PORT 0 selects a free port.
"""

import base64
import hmac
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import mlplatform

port, secret, folder = int(sys.argv[1]), Path(sys.argv[2]).read_text().strip(), Path(sys.argv[3])


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.is_signed(body):
            self.answer(403)
            print(json.dumps({"refused": "the signature is wrong, or older than five minutes"}), flush=True)
            return
        # Answer first: MLflow waits only 30 s, and a model may be large.
        self.answer(204)
        message = json.loads(body)
        if (message["entity"], message["action"]) != ("model_version_alias", "created"):
            return
        model, alias, version = (message["data"][key] for key in ("name", "alias", "version"))
        if alias == "champion":
            fetched = mlplatform.download(f"{model}/{version}", folder / model)
            line = {"model": model, "alias": alias, "version": str(version), "folder": str(fetched)}
            print(json.dumps(line), flush=True)

    def is_signed(self, body: bytes) -> bool:
        """Return whether MLflow has signed the body with the secret, as standardwebhooks.com specifies, and lately."""
        sent = self.headers.get("X-MLflow-Timestamp", "0")
        signed = f"{self.headers.get('X-MLflow-Delivery-Id')}.{sent}.".encode() + body
        signature = b"v1," + base64.b64encode(hmac.digest(secret.encode(), signed, "sha256"))
        given = self.headers.get("X-MLflow-Signature", "").encode()
        return hmac.compare_digest(signature, given) and abs(time.time() - float(sent)) < 300

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

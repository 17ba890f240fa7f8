"""Receivers of alerts by mail, Slack and webhook: prints one line of JSON per message.

    python alert_receiver.py SMTP_PORT HTTP_PORT USER PASSWORD

The mail server accepts one account (AUTH LOGIN, RFC 4954) and takes mails to anybody, without TLS. POST /slack/...
answers as an incoming webhook of Slack does; other paths are for Alertmanager's own format. Prints `listening` first.
"""

import base64
import email
import email.policy
import json
import socketserver
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

smtp_port, http_port, user, password = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]


def received(kind: str, **message: object) -> None:
    # In one call: each message has a thread, and `print` writes the line's end separately.
    sys.stdout.write(json.dumps({"kind": kind, **message}) + "\n")
    sys.stdout.flush()


class Mail(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.account = False
        self.recipients: list[str] = []
        self.answer("220 receiver")
        while command := self.line():
            verb, _, rest = command.partition(" ")
            if verb.upper() == "QUIT":
                self.answer("221 Bye")
                return
            self.command(verb.upper(), rest)

    def command(self, verb: str, rest: str) -> None:
        if verb == "EHLO":
            self.answer("250-receiver\r\n250 AUTH LOGIN")
        elif verb == "AUTH":
            first = rest.partition(" ")[2]  # an initial response, which some clients send with the command
            name = base64.b64decode(first).decode() if first else self.asked("Username:")
            given = (name, self.asked("Password:"))
            self.account = given == (user, password)
            self.answer("235 Accepted" if self.account else "535 Wrong account")
        elif not self.account:
            self.answer("530 Log in first")
        elif verb == "DATA":
            self.answer("354 Send it")
            text = "\r\n".join(iter(self.line, "."))
            self.answer("250 Accepted")
            mail = email.message_from_string(text, policy=email.policy.default)
            body = mail.get_body(("plain",))
            received("email", to=self.recipients, title=mail["Subject"], text=body.get_content() if body else "")
        else:
            if verb == "RCPT":
                self.recipients.append(rest.partition("<")[2].partition(">")[0])
            self.answer("250 Accepted")

    def asked(self, question: str) -> str:
        self.answer(f"334 {base64.b64encode(question.encode()).decode()}")
        return base64.b64decode(self.line()).decode()

    def answer(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())

    def line(self) -> str:
        return self.rfile.readline().decode().rstrip("\r\n")


class Web(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
        if self.path.startswith("/slack/"):
            (attachment,) = body["attachments"]
            received("slack", title=attachment["title"], text=attachment["text"])
        else:
            for alert in body["alerts"]:
                title = f"[{alert['status'].upper()}] {alert['labels']['alertname']}"
                received(
                    "webhook", title=title, text="\n".join((*alert["annotations"].values(), alert["generatorURL"]))
                )

    def log_message(self, *arguments: object) -> None:
        """Suppress the server's own log lines."""


class MailServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True


with MailServer(("", smtp_port), Mail) as mails, ThreadingHTTPServer(("", http_port), Web) as web:
    Thread(target=mails.serve_forever, daemon=True).start()
    print("listening", flush=True)
    web.serve_forever()

"""People of tests on the live stack: each has a laptop with a home folder, no checkout, and a token of their own."""

from __future__ import annotations

import json
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.session
import httpx
from botocore.config import Config
from host import CHECKOUT, Stack, run

from mlplatform.secrets.credentials import read_mlflow_account
from mlplatform.settings.environment import environment
from mlplatform_stack.env import client_settings

SECRET = "of-alice-only"
"""A value to look for in answers."""

_ENVIRONMENT = f'{{"env_vars": {{"API_KEY": "{SECRET}"}}}}'


@dataclass(frozen=True)
class Person:
    """A person of the test, with a laptop that has a home folder and no checkout."""

    name: str
    stack: Stack
    home: Path

    @property
    def variables(self) -> dict[str, str]:
        address = f"http://127.0.0.1:{self.stack.settings.ray_port}"
        ray = {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token_file)}
        # Wide enough that no line of a table is broken.
        return {"HOME": str(self.home), "PATH": os.environ["PATH"], "COLUMNS": "200", **ray}

    @property
    def token_file(self) -> Path:
        return self.home / ".ray/auth_token"

    def types(self, *command: str) -> str:
        """Run a command of the package or of Ray as this person; return everything that it prints."""
        program, *arguments = command
        path = str(CHECKOUT / ".venv/bin" / program)
        done = run(path, *arguments, cwd=self.home, env=self.variables, check=False)
        return done.stdout + done.stderr

    @property
    def ray(self) -> httpx.Client:
        """A client of the gateway with this person's token."""
        headers = {"Authorization": f"Bearer {self.token_file.read_text().strip()}"}
        return httpx.Client(base_url=self.variables["RAY_ADDRESS"], headers=headers, timeout=30)

    def asks(self, method: str, path: str) -> httpx.Response:
        """Send a request to the gateway with this person's token."""
        with self.ray as client:
            return client.request(method, path)

    def asks_mlflow(self, path: str) -> int:
        """Send a request to MLflow with the account that `mlplatform login` has written; return the status."""
        account = read_mlflow_account(self.home / ".mlflow/credentials")
        address = f"http://127.0.0.1:{self.stack.settings.mlflow_port}/api/2.0/mlflow/{path}"
        return httpx.get(address, auth=account, timeout=30).status_code

    def s3(self) -> Any:
        """A client of the object store with the profile that `mlplatform login` has written; it keeps its key."""
        session = botocore.session.Session()
        for name in ("config", "credentials"):
            session.set_config_variable(f"{name}_file", str(self.home / ".aws" / name))
        return session.create_client("s3", config=Config(retries={"max_attempts": 1}))


def administer(stack: Stack, *words: str) -> str:
    """Run a command on the host, with the settings that `mlplatform env` prints: those of the shared token."""
    variables = {**environment(), **client_settings(stack.root).environment()}
    done = run(str(CHECKOUT / ".venv/bin/mlplatform"), *words, env=variables)
    return done.stdout + done.stderr


def log_in(stack: Stack, home: Path, role: str, team: str, *options: str) -> Person:
    """Add a person with a name of their own to a team, and log in with the code; `home` is their home folder."""
    name = f"{role}-{secrets.token_hex(3)}"
    code = re.search(r"mlplatform login (\S+)", administer(stack, "people", "add", name, "--team", team, *options))
    assert code
    person = Person(name, stack, home)
    printed = person.types("mlplatform", "login", code[1])
    assert f"Logged in as {name}" in printed, printed
    assert person.token_file.stat().st_mode & 0o077 == 0
    return person


class People(dict[str, Person]):
    """People by role: alice, her lead lea and her team-mate tom, and bob of another team.

    A person is added and logs in when a test first names the role, because this takes two seconds and most tests need
    one or two people.
    """

    def __init__(self, stack: Stack, team: str, homes: Path) -> None:
        super().__init__()
        self._stack, self._team, self._homes = stack, team, homes

    def __missing__(self, role: str) -> Person:
        return self.log_in(role)

    def log_in(self, role: str) -> Person:
        """Add the person of a role, who logs in on an own laptop."""
        options = {"alice": (), "tom": (), "lea": ("--lead",), "bob": ()}[role]
        (self._homes / role).mkdir()
        self[role] = log_in(self._stack, self._homes / role, role, self._team_of(role), *options)
        return self[role]

    def _team_of(self, role: str) -> str:
        if role != "bob":
            return self._team
        name = f"audio-{secrets.token_hex(3)}"
        administer(self._stack, "teams", "add", name)
        return name


def submit(person: Person, *command: str, gpus: float = 0, folder: Path | None = None, **metadata: str) -> str:
    """Submit a job with Ray's own command, as someone else in the metadata; return its id."""
    given = json.dumps({"user": "somebody-else", **metadata})
    options = [f"--metadata-json={given}", f"--runtime-env-json={_ENVIRONMENT}", f"--entrypoint-num-gpus={gpus}"]
    if folder:
        options.append(f"--working-dir={folder}")
    printed = person.types("ray", "job", "submit", "--no-wait", *options, "--", *command)
    found = re.search(r"Job '(\S+)' submitted successfully", printed)
    assert found, printed
    return found[1]

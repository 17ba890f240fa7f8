"""Profile with a person's own S3 account in the files that AWS clients read: `~/.aws/credentials` and `~/.aws/config`.

Everything else in these files stays as it is: other profiles, comments, and further settings of this profile.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlplatform.contract import PERSON_TOKEN
from mlplatform.errors import SettingsError
from mlplatform.files import atomic
from mlplatform.settings.job import aws_config_file, aws_credentials_file

DEFAULT, OWN = "default", "mlplatform"
"""Names of the profile: clients read the first without a setting, the second with AWS_PROFILE."""

_Profiles = Mapping[str, Mapping[str, str]]
"""Settings by name of the section."""

_KEY, _SECRET = "aws_access_key_id", "aws_secret_access_key"

_ADDRESS = ("endpoint_url", "region", "ca_bundle")
"""Settings in the file without secrets."""


@dataclass(frozen=True)
class Account:
    """An account at an S3 server.

    Attributes:
        key: name of the access key, the id of a person's token.
        secret: its secret, that of the token.
        endpoint_url: address of the server.
        region: region that requests are signed for.
        ca_bundle: file with certificates that the client trusts; None for the usual ones.
    """

    key: str
    secret: str
    endpoint_url: str
    region: str
    ca_bundle: Path | None = None


def write(account: Account) -> str:
    """Write an account into its profile, in place of that of another token; return the profile's name.

    It becomes the default profile unless there is one, which may be of another S3 server.

    Raises:
        SettingsError: a file cannot be read or written, or the profile `mlplatform` has another account.
    """
    credentials, config = aws_credentials_file(), aws_config_file()
    profile = _free_profile(_profiles(credentials), _profiles(config), account.endpoint_url)
    address = {"endpoint_url": account.endpoint_url, "region": account.region}
    ca_bundle = None if account.ca_bundle is None else str(account.ca_bundle)
    # First, because clients would send an account without an address to Amazon.
    _replace(config, edited(_text(config), _section(profile), {**address, "ca_bundle": ca_bundle}))
    _replace(credentials, edited(_text(credentials), profile, {_KEY: account.key, _SECRET: account.secret}))
    return profile


def remove(token_id: str) -> None:
    """Remove the account of a token from both files; do nothing if they have another one.

    Raises:
        SettingsError: a file cannot be read or written.
    """
    credentials, config = aws_credentials_file(), aws_config_file()
    for profile, values in _profiles(credentials).items():
        if profile in (DEFAULT, OWN) and values.get(_KEY) == token_id and _is_of_token(values):
            _replace(credentials, edited(_text(credentials), profile, dict.fromkeys((_KEY, _SECRET))))
            _replace(config, edited(_text(config), _section(profile), dict.fromkeys(_ADDRESS)))


def edited(text: str, section: str, values: Mapping[str, str | None]) -> str:
    """Return the text of a file in which some settings of a section have other values.

    Args:
        text: the file as it is.
        section: its name; one that is missing is added at the end, one without settings is removed.
        values: the settings; None removes one.
    """
    lines = text.splitlines(keepends=True)
    start = next((number for number, line in enumerate(lines) if _header(line) == section), None)
    settings = [f"{name} = {value}\n" for name, value in values.items() if value is not None]
    if start is None:
        if not settings:
            return text
        before = "" if not text else text if text.endswith("\n") else f"{text}\n"
        return "".join((before, "\n" if before else "", f"[{section}]\n", *settings))
    end = next((number for number in range(start + 1, len(lines)) if _header(lines[number])), len(lines))
    rest = [line for line in lines[start + 1 : end] if _name(line) not in values]
    if settings or any(_name(line) for line in rest):
        return "".join((*lines[: start + 1], *settings, *rest, *lines[end:]))
    # With the blank line that has separated it from the one before.
    first = start - 1 if start and not lines[start - 1].strip() else start
    return "".join((*lines[:first], *rest, *lines[end:]))


def _free_profile(credentials: _Profiles, config: _Profiles, endpoint_url: str) -> str:
    """Return the profile with a person's account; if there is none, the one to write it to."""
    for profile in (DEFAULT, OWN):
        if _is_of_token(credentials.get(profile, {})):
            return profile
    # What is left of an earlier log-in, after a restore of a home folder without accounts, has the same address.
    others = [name for name, values in config.items() if values.get("endpoint_url") != endpoint_url]
    if not {DEFAULT, f"profile {DEFAULT}"} & {*credentials, *others}:
        return DEFAULT
    if OWN in credentials:
        raise SettingsError(f"The profile {OWN!r} in {aws_credentials_file()} has another account; rename it.")
    return OWN


def _is_of_token(profile: Mapping[str, str]) -> bool:
    """Return whether a profile has id and secret of a person's token, which no key of Amazon looks like."""
    return PERSON_TOKEN.fullmatch(f"mlp_{profile.get(_KEY)}_{profile.get(_SECRET)}") is not None


def _section(profile: str) -> str:
    """Return the section of a profile in `~/.aws/config`."""
    return profile if profile == DEFAULT else f"profile {profile}"


def _profiles(file: Path) -> _Profiles:
    """Return the settings of each section of a file; none if it does not exist."""
    # As botocore reads them (`botocore/configloader.py`): no section has defaults for the others.
    parser = configparser.RawConfigParser(default_section="\0")
    try:
        parser.read_string(_text(file))
    except configparser.Error as error:
        reason = str(error).splitlines()[0]
        raise SettingsError(f"{file} cannot be read, neither by AWS clients ({reason}); correct it.") from error
    return {name: dict(parser[name]) for name in parser.sections()}


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file} cannot be read ({error}); correct it.") from error


def _replace(file: Path, text: str) -> None:
    """Replace a file, whole or not at all, and remove one that has nothing left."""
    # It may be a link, to a folder of configuration that is under version control for instance.
    target = file.resolve()
    try:
        if not text:
            target.unlink(missing_ok=True)
            return
        with atomic.private_file(target) as draft:
            draft.write_text(text)
    except OSError as error:
        raise SettingsError(f"{file} cannot be written ({error.strerror}); correct its mode or owner.") from error


def _header(line: str) -> str:
    """Return the name of the section that a line begins; empty for other lines."""
    found = re.match(r"\[(.+)\]", line)
    return found[1] if found else ""


def _name(line: str) -> str:
    """Return the name of the setting in a line; empty for blank lines, comments and continuations."""
    found = re.match(r"([^\s#;\[:=][^:=]*)[:=]", line)
    return found[1].strip().lower() if found else ""

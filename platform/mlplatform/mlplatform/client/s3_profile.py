"""Profile in `~/.aws/config` whose `credential_process` is this package: it gets the S3 key of people from the gateway.

Everything else in this file stays as it is: other profiles, comments, and further settings of this profile.
"""

from __future__ import annotations

import configparser
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from mlplatform.errors import SettingsError
from mlplatform.files import atomic
from mlplatform.settings.job import Settings, aws_config_file, aws_credentials_file

DEFAULT, OWN = "default", "mlplatform"
"""Names of the profile: clients read the first without a setting, the second with AWS_PROFILE."""

COMMAND = "s3-credentials"
"""Name of our command that prints the key as S3 clients expect it."""

_Profiles = Mapping[str, Mapping[str, str]]
"""Settings by name of the section."""

_PROCESS = "credential_process"

_SETTINGS = ("endpoint_url", "region", "ca_bundle", _PROCESS)


def write(settings: Settings, token_file: Path, endpoint_url: str, region: str) -> str:
    """Write the profile, and return its name: the default one unless there is one, which may be of another server.

    Args:
        settings: address of the gateway, and certificates that its clients trust.
        token_file: file with the person's token.
        endpoint_url: address of the object store.
        region: region that requests are signed for.

    Raises:
        SettingsError: the file cannot be read or written, or the profile `mlplatform` has another account.
    """
    config = aws_config_file()
    bundle = str(settings.ca_bundle.absolute()) if settings.ca_bundle else None
    values = {
        "endpoint_url": endpoint_url,
        "region": region,
        "ca_bundle": bundle if endpoint_url.startswith("https://") else None,
        _PROCESS: _command(settings.ray_address, token_file, bundle),
    }
    profile = _free_profile(_profiles(aws_credentials_file()), _profiles(config))
    _replace(config, edited(_text(config), _section(profile), values))
    return profile


def remove(token_file: Path) -> None:
    """Remove the profile that uses a file's token; do nothing if there is none.

    Raises:
        SettingsError: the file cannot be read or written.
    """
    config = aws_config_file()
    for section, values in _profiles(config).items():
        if _is_ours(values) and _variable(token_file) in shlex.split(values[_PROCESS]):
            _replace(config, edited(_text(config), section, dict.fromkeys(_SETTINGS)))


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


def _command(gateway: str, token_file: Path, bundle: str | None) -> str:
    """Return the command line, which needs no variable of the shell that an S3 client is started from."""
    program = Path(sys.executable).with_name("mlplatform")
    command = [str(program)] if program.exists() else [sys.executable, "-m", "mlplatform"]
    variables = [f"RAY_ADDRESS={gateway}", _variable(token_file), *([f"SSL_CERT_FILE={bundle}"] if bundle else [])]
    return shlex.join(["env", *variables, *command, COMMAND])


def _variable(token_file: Path) -> str:
    return f"RAY_AUTH_TOKEN_PATH={token_file.absolute()}"


def _free_profile(credentials: _Profiles, config: _Profiles) -> str:
    """Return the profile of ours; if there is none, the one to write it to."""
    for profile in (DEFAULT, OWN):
        if _is_ours(config.get(_section(profile), {})):
            return profile
    if not {DEFAULT, f"profile {DEFAULT}"} & {*credentials, *config}:
        return DEFAULT
    if OWN in credentials or _section(OWN) in config:
        raise SettingsError(f"The profile {OWN!r} of AWS clients has another account; rename it in ~/.aws.")
    return OWN


def _is_ours(profile: Mapping[str, str]) -> bool:
    return profile.get(_PROCESS, "").endswith(f" {COMMAND}")


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

"""Rules of the firewall that close the metadata address of a cloud, on simulated hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlplatform.stack import doctor, firewall
from mlplatform.stack.checks import firewall as check
from mlplatform.stack.checks.finding import Place

DROP = "-A DOCKER-USER -d 169.254.0.0/16 -j REJECT --reject-with icmp-port-unreachable"


@pytest.mark.parametrize(
    ("rules", "closed"),
    [
        ("", False),
        ("-A DOCKER-USER -j RETURN", False),
        (DROP, True),
        (f"{DROP}\n-A DOCKER-USER -j RETURN", True),
        (f"-A DOCKER-USER -j RETURN\n{DROP}", False),
        (f"-A DOCKER-USER -d 169.254.169.254/32 -j ACCEPT\n{DROP}", False),
        (f"-A DOCKER-USER -d 10.0.0.0/8 -j RETURN\n{DROP}", True),
        (f"-A DOCKER-USER -s 172.16.0.0/12 -j ACCEPT\n{DROP}", False),
        (f"-A DOCKER-USER -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n{DROP}", True),
        (f"-A DOCKER-USER -i eth0 -j DROP\n{DROP}", True),
        ("-A DOCKER-USER -d 169.254.169.254/32 -j DROP", False),
        ("-A DOCKER-USER -d 169.254.0.0/16 -p tcp -m tcp --dport 80 -j DROP", False),
        ("-A DOCKER-USER ! -d 169.254.0.0/16 -j DROP", False),
        ('-A DOCKER-USER -d 169.254.0.0/16 -m comment --comment "no metadata" -j DROP', True),
        ("-A DOCKER-USER -j DROP", True),
    ],
)
def test_only_rule_that_rejects_every_packet_counts(rules: str, closed: bool) -> None:
    assert firewall.rejects(f"-N DOCKER-USER\n{rules}\n") is closed


@pytest.fixture
def iptables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of iptables; a test writes what it does."""
    program = tmp_path / "iptables"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return program


def write(program: Path, body: str) -> None:
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def test_missing_rule_is_a_note_with_command_to_paste(iptables: Path) -> None:
    write(iptables, "echo '-A DOCKER-USER -j RETURN'")
    (note,) = firewall.notes()
    assert note.endswith(": sudo iptables -I DOCKER-USER -d 169.254.0.0/16 -j REJECT")
    (finding,) = check.metadata_address(Place(iptables.parent))
    assert (finding.fix, finding.blocks) == (firewall.RULE, False)


# Says that all images are built, and that MinIO runs, whose ports are then not tried.
DOCKER = """\
case "$*" in
  "version "*) echo 28.0.0 ;;
  "compose version "*) echo 2.40.0 ;;
  "info "*) echo '{"DockerRootDir": "/", "Runtimes": {}}' ;;
  "image inspect "*) echo sha256:1 ;;
  *" ps --services") echo minio ;;
esac
"""


def test_check_before_start_includes_note_about_rule(iptables: Path, tmp_path: Path) -> None:
    write(iptables, "echo '-A DOCKER-USER -j RETURN'")
    write(tmp_path / "docker", DOCKER)
    (tmp_path / ".env").write_text("MLPLATFORM_VERSION=1\nDISK_NEEDED_GB=0\n")
    (note,) = firewall.notes()
    assert note in doctor.check_host(tmp_path)


def test_note_reports_that_only_root_can_check(iptables: Path) -> None:
    write(iptables, "echo 'Could not fetch rule set generation id: Permission denied (you must be root)' >&2; exit 4")
    (note,) = firewall.notes()
    assert "could not be checked, because only root" in note


def test_closed_address_has_nothing_to_report(iptables: Path) -> None:
    write(iptables, f"echo '{DROP}'")
    assert firewall.notes() == []
    assert list(check.metadata_address(Place(iptables.parent))) == []

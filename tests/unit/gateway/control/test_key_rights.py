"""Rights of the access keys of attempts and people.

`tests/stack/test_attempt_keys.py` and `test_person_keys.py` try them at MinIO.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pytest

from mlplatform.gateway.control.key_rights import attempt_policy, person_policy
from mlplatform.settings import job as settings_job

LARGEST = 4096
"""MinIO's limit of a key's policy, in bytes (`maxSVCSessionPolicySize`)."""


@pytest.fixture(autouse=True)
def storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_STORAGE", "s3://ray")
    settings_job.settings.cache_clear()


def objects(effect: str, action: str, job_id: str = "mine", team: str | None = "vision") -> set[str]:
    """Objects of the statements with an effect and an action."""
    return allowed(attempt_policy(job_id, team), effect, action)


def of_person(action: str, teams: Collection[str] = ("vision", "audio"), effect: str = "Allow") -> set[str]:
    """Objects of the statements for a person."""
    return allowed(person_policy(teams), effect, action)


def allowed(policy: Any, effect: str, action: str) -> set[str]:
    statements = policy["Statement"]
    matching = [each for each in statements if each["Effect"] == effect and action in each["Action"]]
    return {name.removeprefix("arn:aws:s3:::") for each in matching for name in each.get("Resource", ["*"])}


def test_attempt_writes_to_its_own_folder_and_its_team() -> None:
    assert objects("Allow", "s3:PutObject") == {"ray/mine/*", "teams/vision/*"}
    assert objects("Allow", "s3:DeleteObject") == {"ray/mine/*"}


def test_attempt_changes_neither_its_fence_nor_its_notice() -> None:
    for action in ("s3:PutObject", "s3:DeleteObject"):
        assert objects("Deny", action) == {"ray/mine/attempt", "ray/mine/notice"}


def test_attempt_reads_what_jobs_read_and_its_team() -> None:
    assert objects("Allow", "s3:GetObject") == {"ray/*", "datasets/*", "teams/vision/*"}


def test_attempt_administers_nothing() -> None:
    assert objects("Deny", "admin:*") == {"*"}
    assert not objects("Allow", "admin:*")


def test_job_without_team_reaches_no_folder_of_a_team() -> None:
    assert "teams" not in json.dumps(attempt_policy("mine", None))


def test_policy_of_longest_names_is_short_enough() -> None:
    assert len(json.dumps(attempt_policy("j" * 128, "t" * 30))) < LARGEST / 2
    assert len(json.dumps(person_policy(["t" * 30] * 24))) < LARGEST


def test_prefix_in_the_storage_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLPLATFORM_STORAGE", "s3://ours/checkpoints/")
    settings_job.settings.cache_clear()
    assert "ours/checkpoints/mine/*" in objects("Allow", "s3:DeleteObject")


def test_person_reads_what_jobs_read_and_own_teams() -> None:
    assert of_person("s3:GetObject") == {"ray/*", "datasets/*", "teams/vision/*", "teams/audio/*"}


def test_person_adds_data_sets_and_changes_own_teams_only() -> None:
    theirs = {"teams/vision/*", "teams/audio/*"}
    assert of_person("s3:PutObject") == {"datasets/*"} | theirs
    assert of_person("s3:DeleteObject") == theirs


def test_person_lists_folders_of_own_teams_only() -> None:
    statements: Any = person_policy(["vision", "audio"])["Statement"]
    (listing,) = [each for each in statements if "Condition" in each]
    assert listing["Resource"] == ["arn:aws:s3:::teams"]
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["vision/*", "audio/*"]}}


def test_person_without_team_reaches_no_folder_of_a_team() -> None:
    assert "teams" not in json.dumps(person_policy([]))


def test_person_administers_nothing() -> None:
    assert of_person("admin:*", effect="Deny") == {"*"}

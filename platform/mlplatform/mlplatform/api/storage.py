"""The object store, what is removed from it, and the files of models in it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mlplatform.api.base import Answer, Body, Moment

# Postgres stores no NUL.
_Text = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]


class Place(Answer):
    """Address of the object store."""

    endpoint_url: str
    region: str


class Store(Answer):
    """The object store; null if the platform stores in folders."""

    s3: Place | None


class Key(Answer):
    """The S3 key of people, which is the same for all of them and changes when a person is removed."""

    access_key: str
    secret_key: str = Field(repr=False)


class Unneeded(Answer):
    """Things of one kind that nobody needs any more."""

    kind: str
    count: int
    files: int
    bytes: int


class Prunable(Answer):
    """Data that the settings select for removal."""

    kinds: list[Unneeded]


class MlflowChange(Body):
    """A change at MLflow."""

    account: _Text
    address: _Text
    method: Annotated[str, Field(max_length=20)]
    path: _Text
    values: Annotated[dict[str, _Text], Field(max_length=50)] = Field(
        description="What the request names, such as a model and a version."
    )


class Digests(Answer):
    """Path -> SHA-256 of each file of a model's version, and when they were recorded; null before that."""

    files: dict[str, str] | None
    recorded: Moment | None

"""Selection of images of former versions, and the sums that `make prune` prints."""

from __future__ import annotations

from mlplatform.cli.output import human
from mlplatform.stack.old_images import Image, _bytes, removable
from mlplatform.stack.prune import Amount, total

PROJECT = "test-mlplatform"


def image(identity: str, *tags: str, created: str = "2026-01-01", project: str = PROJECT) -> Image:
    return Image(identity, tags, created, project)


def removed(*images: Image, current: str = "0.4.0", in_use: tuple[str, ...] = ()) -> list[str]:
    return [one.id for one in removable(images, current, PROJECT, in_use)]


def test_current_and_former_version_are_kept() -> None:
    images = [
        image("a", "mlplatform-ray:0.2.0", created="2026-01-01"),
        image("b", "mlplatform-ray:0.3.0", created="2026-02-01"),
        image("c", "mlplatform-ray:0.4.0", created="2026-03-01"),
        image("d", "mlplatform-platform:0.2.0", created="2026-01-02"),
        image("e", "mlplatform-platform:0.4.0", created="2026-03-01"),
    ]
    assert removed(*images) == ["a", "d"]
    assert removed(*images, current="0.3.0") == ["a", "d"], "after a rollback, the newer version is the other one"
    assert removed(*images, in_use=("a",)) == ["d"]


def test_replaced_images_of_this_stack_are_removed() -> None:
    images = [image("mine"), image("other", project="mlplatform"), image("unknown", project="")]
    assert removed(*images) == ["mine"]
    assert removed(*images, in_use=("mine",)) == []


def test_images_with_other_names_are_kept() -> None:
    former = [image(version, f"mlplatform-ray:{version}") for version in ("0.1.0", "0.2.0")]
    images = [
        image("team", "registry.example.org/mlplatform-ray:0.1.0"),
        image("named", "mlplatform-ray:before-upgrade"),
        image("both", "mlplatform-ray:0.1.0", "team/ray:1"),
        image("foreign", "postgres:17"),
    ]
    assert removed(*former, *images) == ["0.1.0"]


def test_sizes_of_docker_are_read() -> None:
    assert [_bytes(text) for text in ("0B", "1.5kB", "7.712GB", "N/A")] == [0, 1500, 7_712_000_000, 0]


def test_amounts_are_summed_by_kind_and_place() -> None:
    amounts = [Amount("logs", "ray-head", 1, 5), Amount("logs", "ray-worker-0", 2, 7), Amount("logs", "ray-head", 3, 1)]
    assert total(amounts) == {("logs", "ray-head"): (4, 6), ("logs", "ray-worker-0"): (2, 7)}


def test_sizes_are_printed_with_unit() -> None:
    assert [human(size) for size in (0, 999, 1500, 7_712_000_000)] == ["0 B", "999 B", "1.5 kB", "7.7 GB"]

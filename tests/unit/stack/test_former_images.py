"""Selection of the images of former versions, which `make up` removes."""

from mlplatform_stack.images import former


def removed(*images: str, current: str = "0.4.0") -> list[str]:
    """Names that are removed of images whose order is that of their times."""
    listed = [f"2026-01-{day:02} 10:00:00 +0000 UTC\t{name}" for day, name in enumerate(images, start=1)]
    return sorted(former(listed, current))


def test_current_version_and_the_one_before_it_are_kept() -> None:
    images = [f"mlplatform-{kind}:{version}" for version in ("0.2.0", "0.3.0", "0.4.0") for kind in ("platform", "ray")]
    assert removed(*images) == ["mlplatform-platform:0.2.0", "mlplatform-ray:0.2.0"]
    assert removed(*images[2:]) == []
    after_rollback = removed(*images, current="0.3.0")
    assert after_rollback == ["mlplatform-platform:0.2.0", "mlplatform-ray:0.2.0"], "the newer version is the other one"


def test_version_that_was_built_last_counts_as_former() -> None:
    images = ["mlplatform-ray:0.3.0", "mlplatform-ray:0.2.0", "mlplatform-ray:0.4.0"]
    assert removed(*images) == ["mlplatform-ray:0.3.0"]


def test_images_with_other_names_are_kept() -> None:
    others = ["mlplatform-former:0", "mlplatform-ray:before-upgrade", "registry.example.org/mlplatform-ray:0.1.0"]
    assert removed("mlplatform-ray:0.1.0", "mlplatform-ray:0.2.0", *others) == ["mlplatform-ray:0.1.0"]

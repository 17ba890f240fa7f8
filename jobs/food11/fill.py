"""Fill the folder of Food-11 from its archive, by address or path: `make data SRC=...` runs it in a container.

Not a lesson. The published archive names photos `training/<class>_<number>.jpg`; the lessons, like torchvision's
`ImageFolder`, read `training/class_<class>/<number>.jpg`. The folder appears complete or not at all.

    python food11/fill.py SOURCE [--folder /mnt/Food-11] [--force]
"""

import argparse
import lzma
import re
import shutil
import sys
import tarfile
import zipfile
import zlib
from collections import Counter
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

PARTS = ("training", "validation", "evaluation")
CLASSES = tuple(f"class_{number:02d}" for number in range(11))


def fill(source: str, folder: Path, force: bool = False) -> None:
    """Fill `folder` from an archive, unless it has photos; exits with a sentence if the archive cannot be used."""
    if (found := count(folder)) and not force:
        print(f"{folder} already contains {listed(found)}. FORCE=1 replaces them.")
        return
    draft = folder.with_name(f".{folder.name}")  # on the same disk
    shutil.rmtree(draft, ignore_errors=True)  # of a run that was killed
    draft.mkdir(parents=True)
    try:
        unpack(archive_of(source, draft / "archive"), draft / "unpacked")
        sort(draft / "unpacked", draft / "photos")
        if folder.exists():
            folder.rename(draft / "former")
        (draft / "photos").rename(folder)
    except (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        sys.exit(f"The archive {source.partition('?')[0]} is damaged ({error}): set SRC to another one.")
    finally:
        shutil.rmtree(draft)
    print(f"{folder} is filled: {listed(count(folder))}. The published data set has 9,866, 3,430 and 3,347.")


def archive_of(source: str, download: Path) -> Path:
    """Return the archive as a file."""
    if not source.startswith(("http://", "https://")):
        if not Path(source).is_file():
            sys.exit(f"There is no archive {source!r}: set SRC to the address or path of that of Food-11.")
        return Path(source)
    print("Downloading ...", flush=True)
    try:
        with urlopen(source, timeout=60) as answer, download.open("wb") as file:  # noqa: S310 - http or https
            shutil.copyfileobj(answer, file)
    except (URLError, OSError) as error:
        # Without its query, which may hold a key.
        sys.exit(f"{source.partition('?')[0]} could not be downloaded ({error}): set SRC to another address.")
    return download


def unpack(archive: Path, target: Path) -> None:
    """Unpack a zip or tar; neither writes outside of the target."""
    print("Unpacking ...", flush=True)
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            zipped.extractall(target)  # noqa: S202 - which leaves out `..` and the root
    elif tarfile.is_tarfile(archive):
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter="data")
    else:
        raise tarfile.ReadError("neither a zip nor a tar file")


def sort(unpacked: Path, target: Path) -> None:
    """Move each photo to the folder of its class; exits if a class has none."""
    for path in sorted(unpacked.rglob("*.*")):
        part, kind, name = path.parent.parent.name, path.parent.name, path.name
        if named := re.fullmatch(r"(\d{1,2})_(.+)", name) if kind in PARTS else None:
            part, kind, name = kind, f"class_{int(named[1]):02d}", named[2]
        if part in PARTS and kind in CLASSES and path.is_file() and not path.is_symlink():
            (target / part / kind).mkdir(parents=True, exist_ok=True)
            path.rename(target / part / kind / name)
    for folder in (target / part / kind for part in PARTS for kind in CLASSES):
        if not folder.is_dir():
            sys.exit(f"The archive has no photos of {folder.relative_to(target)}: set SRC to that of Food-11.")


def count(folder: Path) -> Counter[str]:
    """Return the number of photos of each part."""
    return Counter(path.parts[-3] for path in folder.glob("*/class_*/*") if path.parts[-3] in PARTS)


def listed(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[part]:,} photos for {part}" for part in PARTS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="?", default="")
    parser.add_argument("--folder", type=Path, default=Path("/mnt/Food-11"))
    parser.add_argument("--force", action="store_true", help="replace the photos that are there")
    args = parser.parse_args()
    fill(args.source, args.folder, args.force)

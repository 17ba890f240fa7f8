"""Costly tests: run if what they cover has changed since they passed, or if drawn."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import costly
import pytest

CONFTEST = """
from pathlib import Path
import costly, pytest

costly.TESTS = Path(__file__).parent
costly.CHECKOUT = costly.TESTS.parent
costly.PASSED = costly.TESTS / "passed.txt"
costly.DRAWN, costly.CHANGED_AT_MOST = 1, 3

from conftest_of_all import *
"""

TESTS = "import pytest\n" + "".join(
    f'@pytest.mark.costly("code/{each}.py")\ndef test_{each}(): pass\n' for each in "abcdef"
)

WHOLE = (
    'import pytest\npytestmark = pytest.mark.costly("whole")\n'
    "@pytest.mark.parametrize('case', range(5))\ndef test_case(case): pass\n"
    "@pytest.mark.soak\ndef test_long(): pass\n"
)

LONG = (
    'import pytest\nfrom pathlib import Path\npytestmark = pytest.mark.soak("code/a.py")\n'
    "def test_early(): pass\n"
    "@pytest.mark.parametrize('case', range(2))\n"
    "def test_long(case):\n    if case and not Path('interrupted.no').exists(): pytest.exit('interrupted')\n"
)


class Checkout:
    """A checkout with six costly tests, each of which covers a file, and one that is not costly."""

    def __init__(self, folder: Path) -> None:
        self.root = folder

    def fill(self) -> None:
        for each in "abcdef":
            self.write(f"code/{each}.py", "first")
        self.write("tests/stack/test_code.py", TESTS)
        self.write("tests/stack/test_plain.py", "def test_plain(): pass\n")
        self.write("tests/conftest.py", CONFTEST)
        self.write("tests/conftest_of_all.py", (costly.TESTS / "conftest.py").read_text())
        marks = 'markers = ["soak: long", "costly(paths): covers"]'
        self.write("pyproject.toml", f'[tool.pytest.ini_options]\n{marks}\npythonpath = ["tests"]\n')

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def run(self, *words: str) -> set[str]:
        """Run pytest; return the names of the tests that passed."""
        paths = f"import sys; sys.path[:0] = {[str(costly.TESTS), str(costly.TESTS / 'lessons')]}"
        command = [sys.executable, "-c", f"{paths}; import pytest; sys.exit(pytest.main())", "-v", *words]
        bare = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(command, cwd=self.root, env=bare, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return set(re.findall(r"::test_(\w+)(?:\[\d])? PASSED", done.stdout))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    found = Checkout(tmp_path_factory.mktemp("recorded"))
    found.fill()
    assert len(found.run("--record", "tests/stack")) == 7
    return found


@pytest.fixture
def checkout(recorded: Checkout, tmp_path: Path) -> Checkout:
    """All costly tests have passed."""
    return Checkout(Path(shutil.copytree(recorded.root, tmp_path / "checkout")))


def test_changed_tests_run_and_one_other_is_drawn(checkout: Checkout) -> None:
    checkout.write("code/a.py", "second")
    checkout.write("code/b.py", "second")
    ran = checkout.run("-m", "not soak", "tests/stack")
    assert ran > {"a", "b", "plain"}
    assert len(ran) == 4


def test_long_test_runs_only_when_changed(checkout: Checkout) -> None:
    checkout.write("tests/stack/test_code.py", TESTS.replace('.py")', '.py", long=True)'))
    checkout.run("--record", "tests/stack")
    assert checkout.run("-m", "not soak", "tests/stack") == {"plain"}
    checkout.write("code/a.py", "second")
    assert checkout.run("-m", "not soak", "tests/stack") == {"a", "plain"}


def test_too_many_changed_tests_are_left_to_soak(checkout: Checkout) -> None:
    for each in "abcde":
        checkout.write(f"code/{each}.py", "second")
    ran = checkout.run("-m", "not soak", "tests/stack")
    assert len(ran & set("abcde")) == 3
    assert {"f", "plain"} < ran


def test_file_that_is_marked_counts_as_one_test(checkout: Checkout) -> None:
    checkout.write("whole/code.py", "first")
    checkout.write("tests/stack/test_whole.py", WHOLE)
    checkout.write("code/a.py", "second")
    ran = checkout.run("-m", "not soak", "tests/stack")
    assert {"a", "case", "plain"} < ran
    assert len(ran) == 4
    assert "long" not in ran
    checkout.run("--record", "-m", "soak or costly", "tests/stack")
    recorded = (checkout.root / "tests/passed.txt").read_text()
    assert re.findall(r"^\w{16}  (.*whole.*)$", recorded, re.M) == ["stack/test_whole.py", "stack/test_whole.py (soak)"]


def test_changed_test_itself_runs(checkout: Checkout) -> None:
    checkout.write("tests/stack/test_code.py", TESTS + "# changed\n")
    assert len(checkout.run("-m", "not soak", "tests/stack") & set("abcdef")) == 3


def test_named_file_runs_completely(checkout: Checkout) -> None:
    assert checkout.run("-m", "not soak", "tests/stack/test_code.py") == set("abcdef")


def test_soak_runs_all(checkout: Checkout) -> None:
    checkout.write("code/a.py", "second")
    assert checkout.run("-m", "soak or costly", "tests/stack") == set("abcdef")


def test_interrupted_soak_continues_with_the_rest(checkout: Checkout) -> None:
    soak = ("--record", "--unpassed", "-m", "soak or costly", "tests/stack")
    checkout.write("tests/stack/test_long.py", LONG)
    with pytest.raises(AssertionError, match="interrupted"):
        checkout.run(*soak)
    checkout.write("interrupted.no", "")
    assert checkout.run(*soak) == {"long"}
    assert checkout.run(*soak) == set()
    checkout.write("code/a.py", "second")
    assert checkout.run(*soak) == {"a", "early", "long"}


def test_failed_test_is_not_recorded_as_passed(checkout: Checkout) -> None:
    checkout.write("tests/stack/test_code.py", TESTS.replace("test_a(): pass", "test_a(): assert 0"))
    with pytest.raises(AssertionError, match="assert 0"):
        checkout.run("--record", "tests/stack/test_code.py", "-k", "test_a")
    assert "failed  stack/test_code.py::test_a\n" in (checkout.root / "tests/passed.txt").read_text()


def test_path_without_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(costly.NothingCoveredError, match=r"covers 'gone\.py'"):
        costly.digest_of(("gone.py",), tmp_path)

"""JupyterLab in a browser: login, file browser, terminal and a notebook, clicked as the guides do."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from browser import BOUND_S, Page
from host import Stack, wait_for

from mlplatform.client.jobs import Jobs

ITEMS = "[...document.querySelectorAll('.jp-DirListing-itemText')].map(item => item.innerText)"
FOLDER = "made-in-terminal"
CELL = ".jp-NotebookPanel .jp-CodeCell"


@pytest.fixture
def lab(stack: Stack, page: Page) -> Iterator[Page]:
    """JupyterLab's page, after a login with the form."""
    address = f"http://127.0.0.1:{stack.settings.notebook_port}"
    page.resize(1280, 900)
    page.go(f"{address}/lab?reset")
    wait_for(lambda: page.evaluate("!!document.querySelector('#password_input')"), "the login page", BOUND_S)
    page.type(stack.secret("notebook_token"), into="#password_input")
    page.click("#login_submit")
    wait_for(lambda: page.evaluate("!!document.querySelector('.jp-LauncherCard')"), "the launcher", BOUND_S)
    yield page
    headers = {"Authorization": f"token {stack.secret('notebook_token')}"}
    with httpx.Client(base_url=f"{address}/api", headers=headers, trust_env=False) as jupyter:
        for kind, key in (("terminals", "name"), ("sessions", "id")):
            for entry in jupyter.get(f"/{kind}").raise_for_status().json():
                jupyter.delete(f"/{kind}/{entry[key]}")
    stack.execute("notebook", "rm", "-rf", FOLDER)


def open_item(page: Page, name: str) -> None:
    """Open a file or folder with a double click in the file browser."""
    wait_for(lambda: name in page.evaluate(ITEMS), f"{name} in the file browser", BOUND_S)
    item = f"[...document.querySelectorAll('.jp-DirListing-item')].find(item => item.innerText.startsWith('{name}'))"
    page.evaluate(f"{item}.dispatchEvent(new MouseEvent('dblclick', {{bubbles: true}}))")


def prompt(page: Page) -> str:
    """Prompt of the notebook's first cell with code: `[ ]:`, `[*]:` while it runs, then its number."""
    return str(page.evaluate(f"document.querySelector('{CELL} .jp-InputPrompt')?.innerText"))


def starts_on_keys(page: Page) -> bool:
    """Press Shift+Enter in the first cell; keys are lost while JupyterLab still replaces its placeholder."""
    if prompt(page) == "[ ]:":
        page.press(f"document.querySelector('{CELL} .cm-content')")
        page.press_enter(shift=True)
    return wait_for(lambda: prompt(page) in ("[*]:", "[1]:"), "the prompt to change", 5)


def has_ended(page: Page) -> bool:
    """Return true if the first cell has ended, or raise an `AssertionError` that says what the page shows."""
    assert prompt(page) == "[1]:", f"prompt {prompt(page)!r}; the page shows: {page.text()[-1500:]}"
    return True


def test_lab_shows_lessons_without_questions(lab: Page) -> None:
    lessons = {"README.md", "lessons.md", "digits.py", "food11"}
    wait_for(lambda: lessons <= set(lab.evaluate(ITEMS)), "the lessons", BOUND_S)
    assert "Would you like" not in lab.text()


def test_command_in_terminal_changes_file_browser(lab: Page) -> None:
    lab.click('.jp-LauncherCard[title="Start a new terminal session"]')
    wait_for(lambda: lab.evaluate("!!document.querySelector('.xterm-helper-textarea')"), "a terminal", BOUND_S)
    lab.type(f"mkdir {FOLDER}", into=".xterm-helper-textarea")
    lab.press_enter()
    wait_for(lambda: FOLDER in lab.evaluate(ITEMS), "the folder in the file browser", BOUND_S)
    lab.picture("lab-terminal")


def test_notebook_opens_and_submits_job(lab: Page, jobs: Jobs) -> None:
    open_item(lab, "notebooks")
    open_item(lab, "first_tour.ipynb")
    wait_for(lambda: prompt(lab) == "[ ]:", "the notebook's code", BOUND_S)
    wait_for(lambda: starts_on_keys(lab), "the first cell to start", BOUND_S)
    wait_for(lambda: has_ended(lab), "the end of the first cell", BOUND_S)
    lab.picture("lab-notebook")
    job_id = lab.evaluate(f"document.querySelector('{CELL} .jp-OutputArea-output').innerText").strip("'\n")
    jobs.stop(job_id)
    assert jobs.wait(job_id, timeout_s=BOUND_S).status in ("STOPPED", "SUCCEEDED")

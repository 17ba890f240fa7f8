"""MinIO's console in a browser: login, buckets, and an artifact of a run that appears while the page is open."""

from __future__ import annotations

import uuid

import httpx
import pytest
from browser import BOUND_S, Page
from host import Stack, wait_for

from mlplatform.secrets.credentials import read_mlflow_account, read_s3_account

pytestmark = pytest.mark.minio


def test_console_lists_buckets_and_new_artifact(stack: Stack, page: Page) -> None:
    address = f"http://127.0.0.1:{stack.settings.s3_console_port}"
    page.resize(1280, 900)
    page.go(address)
    wait_for(lambda: page.evaluate("!!document.querySelector('#accessKey')"), "the login page", BOUND_S)
    key, secret = read_s3_account(stack.root / "secrets" / "s3_people")
    page.type(key, into="#accessKey")
    page.type(secret, into="#secretKey")
    wait_for(lambda: not page.evaluate("document.querySelector('#do-login').disabled"), "an enabled button", BOUND_S)
    page.click("#do-login")
    for bucket in ("datasets", "mlflow-artifacts", "ray"):
        page.wait_for_text(bucket, f"bucket {bucket}")
    # The console asks each browser to acknowledge MinIO's licence.
    button = "[...document.querySelectorAll('button')].find(button => button.innerText.trim() == '{}')"
    wait_for(lambda: page.evaluate(f"!!{button.format('Acknowledge')}"), "the licence", BOUND_S)
    page.evaluate(f"{button.format('Acknowledge')}.click()")

    account = read_mlflow_account(stack.root / "secrets" / "mlflow_person")
    with stack.mlflow as mlflow, httpx.Client(auth=account, timeout=30) as artifacts:
        name = f"console-{uuid.uuid4().hex[:8]}"
        experiment = mlflow.post("/experiments/create", json={"name": name}).raise_for_status().json()["experiment_id"]
        run = mlflow.post("/runs/create", json={"experiment_id": experiment}).raise_for_status().json()["run"]
        folder = f"{experiment}/{run['info']['run_id']}/artifacts"
        server = f"http://127.0.0.1:{stack.settings.mlflow_port}/api/2.0/mlflow-artifacts/artifacts/{folder}"
        try:
            artifacts.put(f"{server}/first.txt", content=b"first").raise_for_status()
            page.go(f"{address}/browser/mlflow-artifacts/{folder}/")
            page.wait_for_text("first.txt", "an artifact of the run")
            artifacts.put(f"{server}/second.txt", content=b"second").raise_for_status()
            page.evaluate(f"{button.format('Refresh')}.click()")
            page.wait_for_text("second.txt", "an artifact that appeared while the page was open")
            page.picture("store-console")
        finally:
            mlflow.post("/experiments/delete", json={"experiment_id": experiment})

"""MinIO's console in a browser: login, buckets, and an artifact of a run that appears while the page is open."""

from __future__ import annotations

import httpx
from browser import BOUND_S, Page
from host import Stack, Trained, wait_for

from mlplatform.credentials import read_mlflow_account, read_s3_account


def test_console_lists_buckets_and_new_artifact(stack: Stack, trained: Trained, page: Page) -> None:
    address = f"http://127.0.0.1:{stack.settings.minio_console_port}"
    page.resize(1280, 900)
    page.go(address)
    wait_for(lambda: page.evaluate("!!document.querySelector('#accessKey')"), "the login page", BOUND_S)
    key, secret = read_s3_account(stack.root / "secrets" / "minio_person")
    page.type(key, into="#accessKey")
    page.type(secret, into="#secretKey")
    page.click("#do-login")
    for bucket in ("datasets", "jobs", "mlflow-artifacts", "ray"):
        page.wait_for_text(bucket, f"bucket {bucket}")
    # The console asks each browser to acknowledge MinIO's licence.
    button = "[...document.querySelectorAll('button')].find(button => button.innerText.trim() == '{}')"
    page.evaluate(f"{button.format('Acknowledge')}?.click()")

    (run,) = stack.runs_of(trained.id)
    folder = f"{run['info']['experiment_id']}/{run['info']['run_id']}/artifacts"
    page.go(f"{address}/browser/mlflow-artifacts/{folder}/")
    page.wait_for_text("environment", "an artifact of the run")
    assert "appears.txt" not in page.text()
    server = f"http://127.0.0.1:{stack.settings.mlflow_port}/api/2.0/mlflow-artifacts/artifacts/{folder}/appears.txt"
    account = read_mlflow_account(stack.root / "secrets" / "mlflow_person")
    try:
        httpx.put(server, content=b"hello", auth=account).raise_for_status()
        page.evaluate(f"{button.format('Refresh')}.click()")
        page.wait_for_text("appears.txt", "the new artifact")
        page.picture("minio-console")
    finally:
        httpx.delete(server, auth=account).raise_for_status()

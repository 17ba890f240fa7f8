"""Headers of every response, and the policies of the gateway's own pages and of Ray's."""

from __future__ import annotations

import httpx
import pytest
from ray_head import NO_TLS, Head
from started_gateway import StartedGateway

from mlplatform_gateway.http.headers import OWN_PAGES, RAY_PAGES


def test_every_response_has_security_headers(tmp_path_factory: pytest.TempPathFactory, head: Head) -> None:
    own = ("/platform/login", "/platform/health", "/platform/static/live.js", "/platform/jobs/x", "/echo")
    ray = ("/", "/static/js/main.js", "/nodes", "/api/jobs/01000000")
    with StartedGateway(tmp_path_factory.mktemp("gateway"), head.address).running() as client:
        answers = {path: client.get(path) for path in (*own, *ray)}
        answers["without token"] = httpx.get(f"{client.base_url}/api/jobs/", verify=NO_TLS)
    for path, answer in answers.items():
        expected = RAY_PAGES if path in ray else OWN_PAGES
        assert answer.headers.get_list("content-security-policy") == [expected], path
        assert answer.headers.get_list("x-content-type-options") == ["nosniff"], path
        assert answer.headers.get_list("x-frame-options") == ["DENY"], path
        assert answer.headers.get_list("referrer-policy") == ["same-origin"], path
        assert "mlplatform" in str(answer.headers).lower(), path

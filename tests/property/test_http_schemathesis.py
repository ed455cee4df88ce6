"""schemathesis on the published document: it finds what it says nowhere, and takes its word."""

import json
from typing import Any
from urllib.request import urlopen

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi import checks

from tests.property.hostile import PATIENCE_S, SMALLEST, Answer, check
from tests.servers import RunningServer

pytestmark = pytest.mark.slow
MANY = [10, pytest.param(500, marks=pytest.mark.full)]


@pytest.fixture(scope="module")
def document(http_server: RunningServer) -> dict[str, Any]:
    with urlopen(f"{http_server.url}/openapi.json", timeout=PATIENCE_S) as answer:
        return dict(json.load(answer))


@pytest.mark.parametrize("n_examples", MANY)
@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.parametrize("path", list(SMALLEST))
def test_schemathesis(
    http_server: RunningServer,
    document: dict[str, Any],
    path: str,
    mode: GenerationMode,
    n_examples: int,
) -> None:
    operation = schemathesis.openapi.from_dict(document)[path]["POST"]

    @settings(
        max_examples=n_examples,
        derandomize=n_examples == MANY[0],
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def try_any(case: Case) -> None:
        response = case.call(base_url=http_server.url, session=session, timeout=PATIENCE_S)
        case.validate_response(
            response,
            checks=[
                checks.status_code_conformance,
                checks.content_type_conformance,
                checks.response_schema_conformance,
                checks.negative_data_rejection,
            ],
        )
        headers = {name: values[0] for name, values in response.headers.items()}
        sent = response.request.body or b""
        content = sent.encode() if isinstance(sent, str) else sent
        assert isinstance(content, bytes)
        check(Answer(response.status_code, headers, response.content), content)

    with requests.Session() as session:
        try_any()

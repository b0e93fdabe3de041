"""Generated requests against our own OpenAPI document, and against OpenAI's where it is at hand."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.settings import Settings
from tests.fakes.cache_kit import make_store
from tests.fakes.fake_engine import FakeEngine, fake_served
from tests.fakes.live_server import Live, live

schemathesis = pytest.importorskip("schemathesis", reason="needs the extra 'conformance'")
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.specs.openapi import checks  # noqa: E402

pytestmark = [
    pytest.mark.conformance,
    # What the generators and their dependencies warn of is not ours to mend.
    pytest.mark.filterwarnings("default"),
]
KEY = "conformance"
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}
OPENAI_DOCUMENT = os.environ.get("CROSSTURN_OPENAI_DOCUMENT")
REPEAT = settings(
    max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    settings = Settings(api_keys=(KEY,))
    served = fake_served("demo", context_length=1 << 20)
    with live(FakeEngine(store=make_store()), served, settings) as running:
        yield running


@pytest.fixture(scope="module")
def own_operations(server: Live) -> list[Any]:
    document = server.http.get("/openapi.json").json()
    for operations in document["paths"].values():
        for method in [method for method, operation in operations.items() if not _speaks_json(operation)]:
            del operations[method]
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=server.url.removesuffix("/v1"), headers=AUTHORIZED)
    return [result.ok() for result in schema.get_all_operations()]


def _speaks_json(operation: dict[str, Any]) -> bool:
    """Nothing else can be generated: archives of conversations have tests of their own."""
    content = operation.get("requestBody", {}).get("content", {"application/json": {}})
    return "application/json" in content


@pytest.fixture(scope="module")
def openai_operations(server: Live) -> list[Any]:
    if OPENAI_DOCUMENT is None:
        pytest.skip("CROSSTURN_OPENAI_DOCUMENT names no file")
    schema = schemathesis.openapi.from_path(OPENAI_DOCUMENT)
    schema.config.update(base_url=server.url, headers=AUTHORIZED)
    return [result.ok() for result in schema.get_all_operations()]


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_our_document_tells_the_truth(own_operations: list[Any], mode: GenerationMode) -> None:
    @REPEAT
    @given(st.data())
    def answers_as_documented(data: st.DataObject) -> None:
        operation = data.draw(st.sampled_from(own_operations))
        case = data.draw(operation.as_strategy(generation_mode=mode))
        # A request that fits the document may still be refused: a tool is chosen that is none of the tools.
        # Keys have tests of their own: of the two headers that may hold one, one good key is enough here.
        case.call_and_validate(excluded_checks=[checks.positive_data_acceptance, checks.ignored_auth])

    answers_as_documented()


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_openais_document_meets_no_fault_and_no_foreign_reply(
    openai_operations: list[Any], mode: GenerationMode
) -> None:
    @REPEAT
    @given(st.data())
    def answers_in_openais_terms(data: st.DataObject) -> None:
        operation = data.draw(st.sampled_from(openai_operations))
        case = data.draw(operation.as_strategy(generation_mode=mode))
        if isinstance(case.body, dict):
            case.body["model"] = "demo"
        response = case.call()
        assert response.status_code < 500
        if response.status_code == 200:
            case.validate_response(response, checks=[checks.response_schema_conformance])
        else:
            # What OpenAI's document allows and this server does not do is refused.
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    answers_in_openais_terms()

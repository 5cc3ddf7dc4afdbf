"""The API description: it is served, and whatever it allows gets no 5xx and answers of the type that it names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from forced import write_forced
from server_process import ServerProcess

from pyggml.server.routes import make_routes

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed: pip install schemathesis")

from hypothesis import HealthCheck, settings  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import response_schema_conformance  # noqa: E402


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = write_forced(tmp_path_factory.mktemp("serve") / "m.gguf", "Fine.").path
    with ServerProcess(model, "--ctx", 256, "--threads", 1, "--max-tokens", 8) as server:
        yield server


def document() -> Any:
    """The description, without its server."""
    import msgspec

    from pyggml.server.openapi import description

    routes = [route for route in make_routes("0") if route.path != "/openapi.json"]
    return msgspec.to_builtins(description(routes, "0"))


schema = schemathesis.openapi.from_dict(document())


@schema.parametrize()
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
def test_whatever_the_description_allows_is_no_fault(case: Any, server: ServerProcess) -> None:
    response = case.call(base_url=server.url)
    if case.path == "/health" and response.status_code == 503:
        return
    case.validate_response(response, checks=(not_a_server_error, response_schema_conformance))


def test_nothing_is_left_running(server: ServerProcess) -> None:
    status = server.get("/status").json
    assert (status["n_open"], status["engine"]["n_open"], status["n_restarts"]) == (0, 0, 0)


def test_the_description_is_served(server: ServerProcess) -> None:
    served = server.get("/openapi.json").json
    assert served["openapi"].startswith("3.1")
    assert set(document()["paths"]) == set(served["paths"])


def test_every_route_has_its_type(server: ServerProcess) -> None:
    served = server.get("/openapi.json").json
    for path, operations in served["paths"].items():
        for method, operation in operations.items():
            assert "200" in operation["responses"], path
            assert ("requestBody" in operation) is (method == "post"), path

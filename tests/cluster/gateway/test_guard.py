"""Nobody passes without a key, by whatever path, method or protocol; and nobody learns why a key is wrong."""

from __future__ import annotations

import http.client
import socket

import httpx
import pytest

from cluster.gateway.auth import hash_key, new_key
from cluster.gateway.service import GatewaySettings
from cluster.gateway.settings import DoorSettings
from replicas.config import EngineConfig
from tests.support.local_gateway import local_gateway
from tests.support.sse import refused

PARROT = "tests.support.builders:parrot"
ALICE, ALICE_HASH = new_key("alice")
BOB = "a-key-that-bob-chose"
ORIGIN = "https://app.example"
BODY = {"model": "test", "prompt": "x", "max_tokens": 1}

OPEN = ["/health", "/ready", "/metrics"]
GUARDED = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/models",
    "/v1/models/test",
    "/tokenize",
    "/detokenize",
    "/docs",
    "/openapi.json",
    "/docs/oauth2-redirect",
]
ANTHROPIC = ["/v1/messages", "/v1/messages/count_tokens"]
GUESSES = [
    "/",
    "/invocations",
    "/v2/completions",
    "//v1/completions",
    "/V1/completions",
    "/v1//completions",
    "/v1/completions/",
    "/v1/./completions",
    "/v1/../v1/completions",
    "/health/../v1/completions",
    "/health/",
    "//health",
    "/HEALTH",
    "/%2fhealth",
    "/health%2f..%2fv1/completions",
    "/v1/completions%00",
    "/v1/completions?key=/health",
    "/v1/completions;/health",
    "/-/healthz/v1/models",
]


@pytest.fixture(scope="module")
def guarded(smollm2_path):
    door = DoorSettings(keys=(ALICE_HASH, hash_key("bob", BOB)), origins=(ORIGIN,))
    with local_gateway(smollm2_path, EngineConfig(), PARROT, settings=GatewaySettings(door=door)) as gateway:
        yield gateway


def ask(gateway, method, target, headers=(), body=b""):
    """One request as it is given, without a client that would tidy up its path or its headers."""
    connection = http.client.HTTPConnection(gateway.url.removeprefix("http://"), timeout=30)
    connection.putrequest(method, target, skip_accept_encoding=True)
    for name, value in headers:
        connection.putheader(name, value)
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body)
    response = connection.getresponse()
    answer = httpx.Response(response.status, headers=response.getheaders(), content=response.read())
    connection.close()
    return answer


def bearer(key):
    return [("Authorization", b"Bearer " + key.encode("latin-1"))]


def refusal(response):
    """What holds for each 401; returns its body."""
    refused(response, 401, words="API key")
    assert response.headers["www-authenticate"].startswith("Bearer")
    return response.content


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH", "TRACE"])
@pytest.mark.parametrize("path", GUARDED + GUESSES)
def test_every_other_path_is_shut_to_every_method(guarded, method, path):
    assert refusal(ask(guarded, method, path)) == refusal(ask(guarded, "POST", "/v1/completions"))


@pytest.mark.parametrize("path", GUARDED + GUESSES)
def test_head_tells_nothing_either(guarded, path):
    head = ask(guarded, "HEAD", path)
    assert (head.status_code, head.content) == (401, b"")


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
@pytest.mark.parametrize("path", ANTHROPIC)
def test_anthropics_paths_are_shut_in_its_words(guarded, method, path):
    answer = ask(guarded, method, path)
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"


def test_a_key_may_stand_where_anthropics_clients_put_it(guarded):
    assert ask(guarded, "GET", "/v1/models", [("X-Api-Key", ALICE.encode())]).status_code == 200


def test_every_route_there_is_has_been_tried(guarded):
    schema = ask(guarded, "GET", "/openapi.json", bearer(ALICE)).json()
    assert {path.replace("{name}", "test") for path in schema["paths"]} <= {*OPEN, *GUARDED, *ANTHROPIC}


@pytest.mark.parametrize("path", OPEN)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_probes_and_metrics_need_no_key(guarded, method, path):
    assert ask(guarded, method, path).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        [],
        bearer(""),
        bearer("wrong"),
        bearer(ALICE[:-1]),
        bearer(ALICE + "x"),
        bearer(ALICE.upper()),
        bearer(ALICE_HASH.digest.hex()),
        bearer("kéy"),
        [("Authorization", b"Bearer \xff\xfe")],
        [("Authorization", "ключ".encode())],
        [("Authorization", b"Basic " + ALICE.encode())],
        [("Authorization", ALICE.encode())],
        [("Authorization", b"Bearer")],
        bearer(ALICE) + bearer("wrong"),
        bearer("wrong") + bearer(ALICE),
        [("X-Api-Key", b"wrong")],
        [("X-Api-Key", b"Bearer " + ALICE.encode())],
        [*bearer(ALICE), ("X-Api-Key", ALICE.encode())],
        [("X-Api-Key", ALICE.encode()), ("X-Api-Key", ALICE.encode())],
        [("Cookie", b"key=" + ALICE.encode())],
        [("X-Original-URL", b"/health"), ("X-Forwarded-Prefix", b"/health"), ("X-HTTP-Method-Override", b"OPTIONS")],
        bearer("x" * 8000),
    ],
)
def test_all_bad_keys_get_the_same_answer(guarded, headers):
    missing = ask(guarded, "POST", "/v1/completions")
    answer = ask(guarded, "POST", "/v1/completions", headers, b'{"model": "test", "prompt": "x"}')
    assert refusal(answer) == refusal(missing)
    assert answer.headers.keys() == missing.headers.keys()


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
@pytest.mark.parametrize("key", [ALICE, BOB])
def test_a_key_opens(guarded, scheme, key):
    with guarded.client() as client:
        response = client.post("/v1/completions", json=BODY, headers={"Authorization": f"{scheme} {key}"})
    assert response.status_code == 200, response.text


def test_a_websocket_is_refused_alike(guarded):
    upgrade = [("Connection", b"Upgrade"), ("Upgrade", b"websocket"), ("Sec-WebSocket-Version", b"13")]
    upgrade.append(("Sec-WebSocket-Key", b"AAAAAAAAAAAAAAAAAAAAAA=="))
    for path in ("/v1/completions", "/health", "/anything"):
        assert ask(guarded, "GET", path, upgrade).status_code in (401, 403)
    assert ask(guarded, "GET", "/v1/models", upgrade + bearer(ALICE)).status_code in (403, 404)


def test_a_refusal_does_not_wait_for_the_body(guarded):
    host, port = guarded.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n{")
        assert connection.recv(100).startswith(b"HTTP/1.1 401")


class TestOtherOrigins:
    PREFLIGHT = (
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "authorization,content-type,x-stainless-os"),
    )

    def test_a_preflight_needs_no_key(self, guarded):
        answer = ask(guarded, "OPTIONS", "/v1/chat/completions", [("Origin", ORIGIN), *self.PREFLIGHT])
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert "authorization" in answer.headers["access-control-allow-headers"].lower()

    def test_a_preflight_from_elsewhere_is_answered_and_allows_nothing(self, guarded):
        answer = ask(guarded, "OPTIONS", "/v1/chat/completions", [("Origin", "https://evil.example"), *self.PREFLIGHT])
        assert answer.status_code == 400
        assert "access-control-allow-origin" not in answer.headers

    def test_options_does_no_work(self, guarded):
        answer = ask(guarded, "OPTIONS", "/v1/completions", [("Origin", ORIGIN)], b'{"model": "test", "prompt": "x"}')
        assert answer.status_code == 405

    @pytest.mark.parametrize("key", [ALICE, "wrong"])
    @pytest.mark.parametrize("path", ["/v1/models", "/v1/nothing", "/health"])
    def test_answers_and_refusals_are_readable_from_allowed_origins_only(self, guarded, path, key):
        allowed = ask(guarded, "GET", path, [("Origin", ORIGIN), *bearer(key)])
        assert allowed.headers["access-control-allow-origin"] == ORIGIN
        assert "origin" in allowed.headers["vary"].lower()
        assert "x-ratelimit-remaining-requests" in allowed.headers["access-control-expose-headers"]
        for origin in ("https://evil.example", "http://app.example", ORIGIN + ".evil", "null", ""):
            other = ask(guarded, "GET", path, [("Origin", origin), *bearer(key)])
            assert "access-control-allow-origin" not in other.headers
            assert other.status_code == allowed.status_code


def test_metrics_can_be_shut_as_well(smollm2_path):
    door = DoorSettings(keys=(ALICE_HASH,), public_metrics=False)
    with local_gateway(smollm2_path, EngineConfig(), PARROT, settings=GatewaySettings(door=door)) as gateway:
        refusal(ask(gateway, "GET", "/metrics"))
        metrics = ask(gateway, "GET", "/metrics", bearer(ALICE))
        assert 'mobula_refusals_total{model="unknown",reason="api_key"} 1.0' in metrics.text


def test_without_keys_everybody_may_come(http):
    for headers in ({}, {"Authorization": "Bearer anything"}, {"Authorization": "Basic ñ".encode("latin-1")}):
        assert http.post("/v1/completions", json=BODY, headers=headers).status_code == 200

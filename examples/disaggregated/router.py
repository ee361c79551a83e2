#!/usr/bin/env python3
"""Router of disaggregated vLLM: sends each request to a prefill engine, then to a decode engine that takes its KV cache.

    router.py --prefill URL [--prefill URL ...] --decode URL [--decode URL ...] [--host HOST] [--port PORT]

The engines are `vllm serve` with StraitConnector on both sides (docs/frameworks.md); URLs are like http://10.0.0.7:8000.
Answers /v1/completions and /v1/chat/completions, streamed or not, and /health. Needs aiohttp, which vLLM brings.

What fails costs time, not requests: a decode engine that cannot be reached, or fails before its first byte, is left out
for a few seconds, and another one is asked, at last a prefill engine, which decodes as well. A client that goes aborts
its request at both engines.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

PATHS = ("/v1/completions", "/v1/chat/completions")
REST_SECONDS = 3.0  # for which an engine that failed is not asked
HEADERS = ("Content-Type", "Cache-Control", "X-Request-Id")  # of answers, and of requests:
PASSED = ("Authorization", "X-Request-Id", "traceparent", "tracestate")


@dataclass
class Engine:
    url: str
    live: int = 0  # requests that it has
    rests_until: float = 0.0

    def failed(self) -> None:
        self.rests_until = time.monotonic() + REST_SECONDS


@dataclass
class Router:
    prefill: list[Engine]
    decode: list[Engine]
    session: aiohttp.ClientSession | None = None
    counts: dict[str, int] = field(default_factory=lambda: {"requests": 0, "decoded_by_prefill": 0, "failed": 0})


def in_turn(engines: list[Engine]) -> list[Engine]:
    """The least loaded first; those that rest last."""
    now = time.monotonic()
    return sorted(engines, key=lambda engine: (engine.rests_until > now, engine.live))


def half_of(body: dict, chat: bool) -> dict:
    """The request to the prefill engine: its first token only, which the decode engine computes again."""
    limits = {"max_completion_tokens": 1} if chat else {}
    half = {**body, "stream": False, "max_tokens": 1, **limits, "kv_transfer_params": {"do_remote_decode": True}}
    half.pop("stream_options", None)
    half.pop("min_tokens", None)
    return half


async def prefill(router: Router, path: str, body: dict, headers: dict) -> dict | None:
    """kv_transfer_params for the decode engine. None: no prefill engine could be reached. web.HTTPException: the engine
    refused the request."""
    for engine in in_turn(router.prefill):
        engine.live += 1
        try:
            async with router.session.post(
                engine.url + path, json=half_of(body, "messages" in body), headers=headers
            ) as answer:
                if answer.status == 200:
                    return (await answer.json()).get("kv_transfer_params") or {}
                if answer.status < 500:
                    refused = web.Response(status=answer.status, body=await answer.read())
                    refused.content_type = answer.content_type
                    raise Refused(refused)
                engine.failed()
        except (aiohttp.ClientError, asyncio.TimeoutError):
            engine.failed()
        finally:
            engine.live -= 1
    return None


class Refused(Exception):
    """An engine's answer to a request that is wrong."""

    def __init__(self, response: web.Response):
        super().__init__(response.status)
        self.response = response


async def decode(router: Router, engine: Engine, request: web.Request, body: dict, headers: dict):
    """The engine's answer, passed on as it comes. None: it failed before its first byte."""
    passed = None
    engine.live += 1
    try:
        async with router.session.post(engine.url + request.path, json=body, headers=headers) as answer:
            if answer.status >= 500:
                engine.failed()
                return None
            kept = {name: answer.headers[name] for name in HEADERS if name in answer.headers}
            async for piece in answer.content.iter_any():
                if passed is None:
                    passed = web.StreamResponse(status=answer.status, headers=kept)
                    await passed.prepare(request)
                await passed.write(piece)
            if passed is None:
                return web.Response(status=answer.status, headers=kept)
            await passed.write_eof()
            return passed
    except (aiohttp.ClientError, asyncio.TimeoutError):
        engine.failed()
        if passed is not None:  # part of it is with the client: the connection tells that the rest is missing
            request.transport.abort()
        return passed
    finally:
        engine.live -= 1


async def complete(request: web.Request) -> web.StreamResponse:
    router: Router = request.app["router"]
    router.counts["requests"] += 1
    try:
        body = await request.json()
    except ValueError:
        return web.json_response({"error": {"message": "the body is no JSON", "code": 400}}, status=400)
    headers = {name: request.headers[name] for name in PASSED if name in request.headers}
    try:
        params = await prefill(router, request.path, body, headers)
    except Refused as refused:
        return refused.response
    tried = [(engine, {**body, "kv_transfer_params": params}) for engine in in_turn(router.decode)] if params else []
    for engine, asked in [*tried, *((engine, body) for engine in in_turn(router.prefill))]:
        answer = await decode(router, engine, request, asked, headers)
        if answer is not None:
            router.counts["decoded_by_prefill"] += asked is body
            return answer
    router.counts["failed"] += 1
    return web.json_response({"error": {"message": "no engine can be reached", "code": 503}}, status=503)


async def health(request: web.Request) -> web.Response:
    router: Router = request.app["router"]
    now = time.monotonic()
    engines = {
        side: {engine.url: {"live": engine.live, "rests": engine.rests_until > now} for engine in list_}
        for side, list_ in (("prefill", router.prefill), ("decode", router.decode))
    }
    return web.json_response({**router.counts, **engines})


def make_app(prefill_urls: list[str], decode_urls: list[str]) -> web.Application:
    app = web.Application(client_max_size=64 << 20, handler_args={"handler_cancellation": True})
    router = Router([Engine(url) for url in prefill_urls], [Engine(url) for url in decode_urls])
    app["router"] = router

    async def session(_: web.Application):
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as router.session:
            yield

    app.cleanup_ctx.append(session)
    app.router.add_get("/health", health)
    for path in PATHS:
        app.router.add_post(path, complete)
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefill", action="append", required=True, metavar="URL")
    parser.add_argument("--decode", action="append", required=True, metavar="URL")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    arguments = parser.parse_args()
    web.run_app(
        make_app([url.rstrip("/") for url in arguments.prefill], [url.rstrip("/") for url in arguments.decode]),
        host=arguments.host,
        port=arguments.port,
        handler_cancellation=True,
        print=lambda text: print(text, file=sys.stderr),
    )


if __name__ == "__main__":
    main()

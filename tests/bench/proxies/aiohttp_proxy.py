"""What one writes in an hour with aiohttp: key, model, the less busy of two, bytes as they come.

`python aiohttp_proxy.py PORT KEY ENGINE_PORT ENGINE_PORT`, in an environment that has aiohttp.
"""

import json
import random
import sys
from collections.abc import AsyncIterator

from aiohttp import ClientSession, TCPConnector, web


def proxy(key: str, engines: list[str]) -> web.Application:
    in_flight = dict.fromkeys(engines, 0)

    async def serve(request: web.Request) -> web.StreamResponse:
        if request.headers.get("authorization") != f"Bearer {key}":
            return web.json_response({"error": {"message": "no"}}, status=401)
        body = await request.read()
        if json.loads(body).get("model") != "bench":
            return web.json_response({"error": {"message": "no"}}, status=404)
        engine = min(random.sample(engines, 2), key=lambda one: in_flight[one])
        in_flight[engine] += 1
        try:
            async with request.app["session"].post(
                engine + request.path,
                data=body,
                headers={"content-type": request.headers["content-type"]},
            ) as answer:
                out = web.StreamResponse(status=answer.status)
                out.content_type = answer.content_type
                if answer.content_length is not None:
                    out.content_length = answer.content_length
                await out.prepare(request)
                async for data in answer.content.iter_any():
                    await out.write(data)
                await out.write_eof()
                return out
        finally:
            in_flight[engine] -= 1

    async def session(app: web.Application) -> AsyncIterator[None]:
        app["session"] = ClientSession(connector=TCPConnector(limit=0))
        yield
        await app["session"].close()

    app = web.Application(client_max_size=2**26)
    app.cleanup_ctx.append(session)
    app.router.add_post("/{path:.*}", serve)
    return app


if __name__ == "__main__":
    web.run_app(
        proxy(sys.argv[2], [f"http://127.0.0.1:{port}" for port in sys.argv[3:]]),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        print=None,
    )

"""GET /: what an HTTP port has, for people and programs that come without knowing."""

from html import escape

from ...transport.http1 import HttpCall, Routes, answer_json, answer_whole

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>dynamo-router</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"></head>
<body><h1>dynamo-router</h1><p>This port answers:</p><ul>
{}
</ul></body></html>
"""
_HEADERS = {
    "content-type": "text/html; charset=utf-8",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


class IndexRoute:
    """The list of a port's routes, JSON or, for a browser, a page."""

    def __init__(self, routes: Routes) -> None:
        self._names = sorted(routes, key=lambda name: name.partition(" ")[::-1])

    @property
    def routes(self) -> Routes:
        return {"GET /": self._on_index}

    async def _on_index(self, call: HttpCall) -> None:
        if "text/html" in call.headers.get("accept", "").lower():
            page = _PAGE.format("\n".join(map(_line, self._names)))
            await answer_whole(call, page.encode(), {**_HEADERS, "vary": "Accept"})
        else:
            await answer_json(call, {"service": "dynamo-router", "routes": self._names})


def _line(name: str) -> str:
    method, _, path = name.partition(" ")
    shown = escape(path)
    if method == "GET" and "{" not in path:
        shown = f'<a href="{shown}">{shown}</a>'
    return f"<li>{method} {shown}</li>"

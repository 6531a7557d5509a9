"""Who may see the pages, and what a browser may do with them.

A page on this machine can be reached by any site the user visits, if only that site's name is made to point
here (DNS rebinding). So the Host of a request must be an address or this machine's name, a foreign Origin is
refused, and beyond loopback a token is asked for. The content security policy allows no inline script and
nothing from elsewhere, so that a text that slipped through escaping could still do nothing.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "mapo_view"
PLOTLY_STYLES = (
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='",  # empty: the one it adds its rules to
    "'sha256-ji27qzEtxXZW+7dun6UwjHXJ18e6WAin1VvNtkzIE/o='",  # maps, of plotly 7.1.0; without it no map
)
"""The style elements that plotly.js puts into a page, by their hashes."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        f"style-src 'self' {' '.join(PLOTLY_STYLES)}",
        "style-src-attr 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """Middleware. `names` are host names that may be asked for; `token` is needed where it is not empty."""

    def __init__(self, app: ASGIApp, *, names: Collection[str] = (), token: str = "") -> None:
        self.app, self.token = app, token
        self.names = {"localhost", *(name.casefold() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = self._refusal(scope)
        app = refusal or self.app
        await app(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._known_host(hosts[0]):
            return PlainTextResponse("this host name is not served here\n", 421)
        origins = headers.getlist("origin")
        if any(_netloc(origin) != hosts[0].casefold() for origin in origins):
            return PlainTextResponse("requests from other sites are refused\n", 403)
        if (
            headers.get("sec-fetch-site", "none") == "cross-site"
            and headers.get("sec-fetch-mode") != "navigate"
        ):
            return PlainTextResponse("requests from other sites are refused\n", 403)
        return self._without_token(scope, headers) if self.token else None

    def _known_host(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").casefold()
            _ = urlsplit(f"//{host}").port
            if name in self.names:
                return True
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _without_token(self, scope: Scope, headers: Headers) -> ASGIApp | None:
        """None where the token came with the request; in an address it is taken over into a cookie."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        name = _cookie_name(scope)
        cookies = [cookie_parser(header).get(name, "") for header in headers.getlist("cookie")]
        if kind.casefold() == "bearer":
            cookies.append(given.strip())
        if any(self._right(each) for each in cookies):
            return None
        asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not any(name == "token" and self._right(value) for name, value in asked):
            return PlainTextResponse("a token is needed: open the address that mapo view printed\n", 401)
        rest = urlencode([pair for pair in asked if pair[0] != "token"])
        path = "/" + scope["path"].lstrip("/\\")
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        answer.set_cookie(name, self.token, httponly=True, samesite="lax", max_age=30 * 86400)
        return answer

    def _right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())


def _cookie_name(scope: Scope) -> str:
    """One for each port: cookies do not know ports, and two viewers have two tokens."""
    server = scope.get("server")
    return f"{COOKIE}_{server[1]}" if server and server[1] else COOKIE


def _netloc(origin: str) -> str:
    """Host and port of an Origin; empty where it has none or is none."""
    try:
        return urlsplit(origin).netloc.casefold()
    except ValueError:
        return ""

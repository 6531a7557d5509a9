"""Access control and security headers.

Any website can reach a server on this machine by DNS rebinding. Therefore the Host of a request must be an IP
address or a known name, foreign origins are refused, and beyond loopback a token is required. The content
security policy allows no inline scripts and no other hosts, as a second defence behind escaping.
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
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='",  # the empty element that it adds its rules to
    "'sha256-ji27qzEtxXZW+7dun6UwjHXJ18e6WAin1VvNtkzIE/o='",  # maps, plotly 7.1.0
)
"""Hashes of the style elements that plotly.js adds to a page."""
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
    """Middleware. `names` are accepted host names; a non-empty `token` is required from every client."""

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
            return PlainTextResponse(
                "This host name is not served here. Use --allow-host to accept it.\n", 421
            )
        origins = headers.getlist("origin")
        if any(_netloc(origin) != hosts[0].casefold() for origin in origins):
            return PlainTextResponse("Requests from other sites are refused.\n", 403)
        if (
            headers.get("sec-fetch-site", "none") == "cross-site"
            and headers.get("sec-fetch-mode") != "navigate"
        ):
            return PlainTextResponse("Requests from other sites are refused.\n", 403)
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
        """Return None if the request carries the token. A token in the URL is moved into a cookie."""
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        name = _cookie_name(scope)
        cookies = [cookie_parser(header).get(name, "") for header in headers.getlist("cookie")]
        if kind.casefold() == "bearer":
            cookies.append(bearer.strip())
        if any(self._is_token(each) for each in cookies):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not any(name == "token" and self._is_token(value) for name, value in query):
            return PlainTextResponse("A token is required. Open the URL that mapo view printed.\n", 401)
        rest = urlencode([pair for pair in query if pair[0] != "token"])
        path = "/" + scope["path"].lstrip("/\\")
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
        answer.set_cookie(name, self.token, httponly=True, samesite="lax", max_age=30 * 86400)
        return answer

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.token.encode())


def _cookie_name(scope: Scope) -> str:
    """Return a name per port: cookies ignore ports, and two viewers have two tokens."""
    server = scope.get("server")
    return f"{COOKIE}_{server[1]}" if server and server[1] else COOKIE


def _netloc(origin: str) -> str:
    """Return host and port of an Origin; empty if it has none."""
    try:
        return urlsplit(origin).netloc.casefold()
    except ValueError:
        return ""

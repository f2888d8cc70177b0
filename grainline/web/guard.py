"""Checks before every route: Host and origin, limits per client, response headers.

Every page in the browser can reach a server on this machine. Three checks keep other sites out:
  1. the Host header must name this machine, so that a foreign name that was pointed at 127.0.0.1 (DNS
     rebinding) gets nothing;
  2. requests from other sites, by Sec-Fetch-Site and Origin, are refused;
  3. a body must be of the content type of its route.

One address gets at most a share of requests and bytes. An IPv6 address counts as its network of
64 bits, since one machine can use all addresses of it. A proxy that the user lists passes on many clients:
for its requests the address in X-Forwarded-For counts, from the right the first that is no listed proxy.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated, Any
from urllib.parse import SplitResult, urlsplit

from pydantic import Field, PlainValidator
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grainline.config import Config

UPLOAD = "/api/search/image"
HEALTH = "/api/health"
REQUESTS = 256  # at a time, of any kind
BODY = 256 * 2**10  # bytes of a request without an image
IMAGE = 16 * 2**20  # bytes of a request with one
BUFFERED = 256 * 2**20  # bytes of all bodies together
SENDING = 20.0  # seconds for sending the body of a request
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


def _network(value: Any) -> IPv4Network | IPv6Network:
    """An address or a network of them. Raises ValueError in plain words."""
    try:
        return ip_network(value)
    except ValueError:
        raise ValueError("an address or a network is needed, such as 10.0.0.1 or 10.0.0.0/8") from None


Network = Annotated[IPv4Network | IPv6Network, PlainValidator(_network)]


class Limits(Config):
    """Limits that a user may set."""

    batch: int = Field(16, gt=0)  # requests that the model answers together
    queue: int = Field(64, gt=0)  # requests that may wait for it
    share: float = Field(0.25, gt=0, le=1)  # of requests, bytes, queue, decoders: for one address
    behind_proxy: tuple[Network, ...] = ()  # proxies whose X-Forwarded-For counts


class Pool:
    """A resource of limited size."""

    def __init__(self, most: int, share: float) -> None:
        """most: units in all. share: of them, for one address; one unit at least"""
        self.most, self.most_of_one = most, max(1, int(most * share))
        self.used, self.used_by = 0, Counter[str]()

    def take(self, client: str, units: int = 1) -> bool:
        """Whether there is room; only then the units count as used.

        >>> pool = Pool(4, 0.5)
        >>> [pool.take(client) for client in "aaabbc"]
        [True, True, False, True, True, False]
        """
        if self.used_by[client] + units > self.most_of_one or self.used + units > self.most:
            return False
        self.used += units
        self.used_by[client] += units
        return True

    def give(self, client: str, units: int = 1) -> None:
        """Return units."""
        self.used -= units
        self.used_by[client] -= units
        if not self.used_by[client]:
            del self.used_by[client]


def is_listed(address: str, proxies: Sequence[Network]) -> bool:
    """Whether an address belongs to a proxy."""
    return bool(proxies) and any(ip_address(address) in network for network in proxies)


def client_of(scope: Scope, proxies: Sequence[Network]) -> str:
    """The name under which a request counts.

    >>> def ask(peer, *values):
    ...     headers = [(b"x-forwarded-for", value) for value in values]
    ...     scope = {"type": "http", "client": (peer, 1), "headers": headers}
    ...     return client_of(scope, [ip_network("10.0.0.0/8")])
    >>> ask("1.2.3.4", b"9.9.9.9")  # not a listed proxy
    '1.2.3.4'
    >>> ask("10.0.0.1", b"6.6.6.6, 9.9.9.9", b"10.0.0.2:80"), ask("10.0.0.1", b"who?"), ask("10.0.0.1")
    ('9.9.9.9', '10.0.0.1', '10.0.0.1')
    """
    address = str((scope.get("client") or ("",))[0])
    values = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")
    for value in reversed(values):
        before = parse_address(value.strip()) or parse_address(host_of(value.strip()))
        if not before or not is_listed(address, proxies):
            break
        address = str(before)
    return counted(address)


def counted(address: str) -> str:
    """The name under which an address counts.

    >>> counted("127.0.0.1"), counted("::ffff:127.0.0.1"), counted("2001:db8::1:2:3:4"), counted("a socket")
    ('127.0.0.1', '127.0.0.1', '2001:db8::/64', 'a socket')
    """
    parsed = parse_address(address.partition("%")[0])
    if not isinstance(parsed, IPv6Address):
        return address
    return str(parsed.ipv4_mapped or ip_network((parsed, 64), strict=False))


def parse_address(value: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(value)
    except ValueError:
        return None


def host_of(value: str) -> str:
    """The host in a Host header or another "host:port", without the port.

    >>> host_of("LOCALHOST:8017"), host_of("[::1]:80"), host_of("a b@c"), host_of("1.2.3.4:80")
    ('localhost', '::1', 'c', '1.2.3.4')
    """
    return _parts("//" + value).hostname or ""


def _parts(address: str) -> SplitResult:
    """The parts of an address, all empty for what is none."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


def local(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    address = parse_address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def is_own_name(name: str, host: str) -> bool:
    """Whether a name in the Host header means a server that listens at `host`.

    On the own machine: its loopback names. Elsewhere also every IP address, which cannot be rebound, the
    name that was given, and the name of the machine.

    >>> [is_own_name(name, "127.0.0.1") for name in ("localhost", "127.0.0.1", "192.168.0.7", "evil.example")]
    [True, True, False, False]
    >>> is_own_name("192.168.0.7", "0.0.0.0"), is_own_name("evil.example", "0.0.0.0")
    (True, False)
    """
    if name in ("localhost", "127.0.0.1", "::1", host.lower()):
        return True
    return not local(host) and (parse_address(name) is not None or name == socket.gethostname().lower())


def error_response(status: int, why: str) -> JSONResponse:
    headers = {"Retry-After": "1"} if status == 503 else None
    return JSONResponse({"error": " ".join(why.split())}, status, headers)


class Guard:
    """ASGI middleware that checks requests and reads their bodies."""

    def __init__(self, app: ASGIApp, limits: Limits, host: str) -> None:
        """host  where the server listens"""
        self.app, self.limits, self.host = app, limits, host
        self.requests, self.bytes = Pool(REQUESTS, limits.share), Pool(BUFFERED, limits.share)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent: list[str] = []
        send = _with_headers(send, scope["path"], sent)
        client = client_of(scope, self.limits.behind_proxy)
        counted = scope["path"] != HEALTH and self.requests.take(client)
        sizes: list[int] = []
        try:
            self._admit(scope, counted)
            body = await self._body(scope, receive, client, sizes)
            await self.app(scope, _replayed(body, receive), send)
        except HTTPException as error:
            await error_response(error.status_code, error.detail)(scope, receive, send)
        except asyncio.CancelledError:  # the time of the server at its end is over
            if sent:
                raise
            await error_response(503, "the server is ending; try again in a moment")(scope, receive, send)
        except Exception:
            # Starlette raises an error again after its answer. Passed on, uvicorn would close the connection
            # under the client's next request.
            if not sent:
                raise
        finally:
            if counted:
                self.requests.give(client)
            self.bytes.give(client, sum(sizes))

    def _admit(self, scope: Scope, counted: bool) -> None:
        """Raises HTTPException. counted: whether the request is among those that may run"""
        headers, path = Headers(scope=scope), scope["path"]
        name = host_of(headers.get("host", ""))
        if not is_own_name(name, self.host):
            raise HTTPException(421, f"this server does not go by the name {name!r}")
        if path.startswith("/api/") and not _same_site(headers):
            raise HTTPException(403, "requests from other sites are not answered")
        if not counted and path != HEALTH:
            raise HTTPException(503, "too many requests at a time; try again in a moment")
        if scope["method"] == "POST":
            expected = "multipart/form-data" if path == UPLOAD else "application/json"
            if headers.get("content-type", "").partition(";")[0].strip().lower() != expected:
                raise HTTPException(415, f"the content type must be {expected}")

    async def _body(self, scope: Scope, receive: Receive, client: str, sizes: list[int]) -> bytes:
        """The whole body. sizes: gets the number of bytes of every piece. Raises HTTPException."""
        most = IMAGE if scope["path"] == UPLOAD else BODY
        too_large = HTTPException(413, f"the request is too large; at most {most:,} bytes are allowed")
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdecimal() or int(length) > most:
            raise too_large
        pieces = []
        try:
            async with asyncio.timeout(SENDING):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HTTPException(400, "the request was broken off")
                    piece = message.get("body", b"")
                    if sum(sizes) + len(piece) > most:
                        raise too_large
                    if not self.bytes.take(client, len(piece)):
                        raise HTTPException(503, "too much is being sent at a time; try again in a moment")
                    pieces.append(piece)
                    sizes.append(len(piece))
                    if not message.get("more_body", False):
                        return b"".join(pieces)
        except TimeoutError:
            raise HTTPException(408, f"the request was not sent within {SENDING:g} s") from None


def _same_site(headers: Headers) -> bool:
    """Whether the browser says that the request is same-origin; other programs send no such header."""
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or _parts(origin).netloc == headers.get("host")


def _with_headers(send: Send, path: str, kinds: list[str]) -> Send:
    """kinds: gets the type of every message that is sent"""

    async def sent(message: Message) -> None:
        kinds.append(message["type"])
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(HEADERS)
            headers.setdefault("Cache-Control", "no-store" if path.startswith("/api/") else "no-cache")
        await send(message)

    return sent


def _replayed(body: bytes, receive: Receive) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message

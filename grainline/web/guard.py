"""Checks before every route: Host and origin, limits per client, response headers.

Every page in the browser can reach a server on this machine. Three checks keep other sites out:
  1. the Host header must name this machine, so that a foreign name that was pointed at 127.0.0.1 (DNS
     rebinding) gets nothing;
  2. requests from other sites, by Sec-Fetch-Site and Origin, are refused;
  3. a body must be of the content type of its route.

When the server ends, `Guard.end` answers every request that still runs with 503.
"""

import asyncio
import ipaddress
import json
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grainline.web.limits import Limits

# Limits per client: one address gets at most a share of connections, requests and bytes.
#
# An IPv6 address counts as its network of 64 bits, since one machine can use all addresses of it. A proxy
# that the user lists speaks for many clients: for its requests the address in X-Forwarded-For counts, from
# the right the first one that belongs to no listed proxy.


Network = IPv4Network | IPv6Network


class Pool:
    """A resource of limited size."""

    def __init__(self, most: int, share: float) -> None:
        """
        most   units in all
        share  of them, for one address; one unit at least
        """
        self.most, self.most_of_one = most, max(1, int(most * share))
        self.used, self.used_by = 0, Counter[str]()

    def take(self, client: str, units: int = 1) -> bool:
        """Whether there is room; only then the units count as used. client "" has no share of its own.

        >>> pool = Pool(4, 0.5)
        >>> [pool.take(client) for client in "aaabbc"]
        [True, True, False, True, True, False]
        """
        over_share = bool(client) and self.used_by[client] + units > self.most_of_one
        if over_share or self.used + units > self.most:
            return False
        self.used += units
        self.used_by[client] += units
        return True

    def give(self, client: str, units: int = 1) -> None:
        """Return what was taken."""
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
        before = _address(value.strip())
        if not before or not is_listed(address, proxies):
            break
        address = before
    return counted(address)


def counted(address: str) -> str:
    """The name under which an address counts.

    >>> counted("127.0.0.1"), counted("::ffff:127.0.0.1"), counted("2001:db8::1:2:3:4"), counted("a socket")
    ('127.0.0.1', '127.0.0.1', '2001:db8::/64', 'a socket')
    """
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(parsed, IPv6Address):
        return address
    return str(parsed.ipv4_mapped or ip_network((parsed, 64), strict=False))


def _address(value: str) -> str:
    """The address in an entry of X-Forwarded-For, without a port; "" for anything else.

    >>> [_address(value) for value in ("1.2.3.4", "1.2.3.4:80", "[::1]:80", "::1", "unknown", "")]
    ['1.2.3.4', '1.2.3.4', '::1', '::1', '', '']
    """
    if value.startswith("["):
        value = value[1:].partition("]")[0]
    elif value.count(":") == 1:
        value = value.partition(":")[0]
    try:
        return str(ip_address(value))
    except ValueError:
        return ""


UPLOAD = "/api/search/image"
HEALTH = "/api/health"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


class Refusal(Exception):
    """A request that is refused."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


ENDING = Refusal(503, "the server is ending; try again in a moment")


class Guard:
    """ASGI middleware that checks requests and reads their bodies."""

    def __init__(self, app: ASGIApp, limits: Limits, is_own_name: Callable[[str], bool]) -> None:
        """is_own_name  whether a host name means this server"""
        self.app, self.limits, self.is_own_name = app, limits, is_own_name
        self.requests = Pool(limits.requests, limits.share)
        self.bytes = Pool(limits.buffered, limits.share)
        self.tasks: set[asyncio.Task[Any]] = set()
        self.ending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent: list[str] = []
        send = _with_headers(send, scope["path"], sent)
        client = client_of(scope, self.limits.behind_proxy)
        counted = scope["path"] != HEALTH and self.requests.take(client)
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        sizes: list[int] = []
        try:
            self._admit(scope, counted)
            body = await self._body(scope, receive, client, sizes)
            await self.app(scope, _replayed(body, receive), send)
        except Refusal as refusal:
            await _refuse(send, refusal)
        except asyncio.CancelledError:
            if not self.ending:
                raise
            task.uncancel()
            if not sent:
                await _refuse(send, ENDING)
        except Exception:
            # The application has logged and answered, and raises nevertheless (starlette's way). Passed on,
            # uvicorn would close the connection under the client's next request.
            if not sent:
                raise
        finally:
            self.tasks.discard(task)
            if counted:
                self.requests.give(client)
            self.bytes.give(client, sum(sizes))

    async def refuse(self, scope: Scope, send: Send, refusal: Refusal) -> None:
        """Respond with a refusal, without reading the request."""
        await _refuse(_with_headers(send, scope["path"], []), refusal)

    def end(self) -> None:
        """Respond to all running and later requests with 503."""
        self.ending = True
        for task in self.tasks:
            task.cancel()

    def _admit(self, scope: Scope, counted: bool) -> None:
        """Raises Refusal. counted  whether the request has its place among those that may run"""
        if self.ending:
            raise ENDING
        headers = Headers(scope=scope)
        host = _name(headers.get("host", ""))
        if not self.is_own_name(host):
            raise Refusal(421, f"this server does not go by the name {host!r}")
        path = scope["path"]
        if path.startswith("/api/") and not _same_site(headers):
            raise Refusal(403, "requests from other sites are not answered")
        if not counted and path != HEALTH:
            raise Refusal(503, "too many requests at a time; try again in a moment")
        if scope["method"] == "POST":
            expected = "multipart/form-data" if path == UPLOAD else "application/json"
            if headers.get("content-type", "").partition(";")[0].strip().lower() != expected:
                raise Refusal(415, f"the content type must be {expected}")

    async def _body(self, scope: Scope, receive: Receive, client: str, sizes: list[int]) -> bytes:
        """The whole body. sizes  gets the number of bytes of every piece. Raises Refusal."""
        most = self.limits.upload if scope["path"] == UPLOAD else self.limits.body
        too_large = Refusal(413, f"the request is too large; at most {most:,} bytes are allowed")
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdecimal() or int(length) > most:
            raise too_large
        pieces = []
        try:
            async with asyncio.timeout(self.limits.sending):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refusal(400, "the request was broken off")
                    piece = message.get("body", b"")
                    if sum(sizes) + len(piece) > most:
                        raise too_large
                    if not self.bytes.take(client, len(piece)):
                        raise Refusal(503, "too much is being sent at a time; try again in a moment")
                    pieces.append(piece)
                    sizes.append(len(piece))
                    if not message.get("more_body", False):
                        return b"".join(pieces)
        except TimeoutError:
            raise Refusal(408, f"the request was not sent within {self.limits.sending:g} s") from None


def names_of(host: str) -> Callable[[str], bool]:
    """Which names in the Host header mean a server that listens at `host`.

    On the own machine: its loopback names. Elsewhere also every IP address, which cannot be rebound, the
    name that was given, and the name of the machine.

    >>> mine = names_of("127.0.0.1")
    >>> mine("localhost"), mine("127.0.0.1"), mine("192.168.0.7"), mine("evil.example")
    (True, True, False, False)
    >>> names_of("0.0.0.0")("192.168.0.7"), names_of("0.0.0.0")("evil.example")
    (True, False)
    """
    names = {"localhost", "127.0.0.1", "::1", host.lower()}
    if local(host):
        return names.__contains__
    names.add(socket.gethostname().lower())
    return lambda name: name in names or _is_address(name)


def local(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _name(host: str) -> str:
    """The name in a Host header, without the port.

    >>> _name("LOCALHOST:8017"), _name("[::1]:80"), _name("a b@c")
    ('localhost', '::1', 'c')
    """
    try:
        return urlsplit("//" + host).hostname or ""
    except ValueError:
        return ""


def _same_site(headers: Headers) -> bool:
    """Whether the browser says that the request is same-origin; other programs send no such header."""
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == headers.get("host")


def _with_headers(send: Send, path: str, kinds: list[str]) -> Send:
    """kinds  gets the type of every message that is sent"""

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


def json_of(refusal: Refusal) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Headers and body of a refusal."""
    body = json.dumps({"error": str(refusal)}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if refusal.status == 503:
        headers.append((b"retry-after", b"1"))
    return headers, body


async def _refuse(send: Send, refusal: Refusal) -> None:
    headers, body = json_of(refusal)
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

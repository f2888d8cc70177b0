"""Checks before every route, and what a client may cost: requests, bytes, time, decoders; response headers.

Every page in the browser can reach a server on this machine. Three checks keep other sites out:
  1. the Host header must name this machine, so that a foreign name that was pointed at 127.0.0.1 (DNS
     rebinding) gets nothing;
  2. requests from other sites, by Sec-Fetch-Site and Origin, are refused;
  3. a body must be of the content type of its route.

One address gets at most a share of requests and bytes. An IPv6 address counts as its network of
64 bits, since one machine can use all addresses of it. A proxy that the user lists passes on many clients:
for its requests the address in X-Forwarded-For counts, from the right the first that is no listed proxy.

Images are decoded in processes of their own: a file of a hundred bytes can hold millions of pixels, or a
thousand scans of them, and no decoder stops in the middle. A process can be killed: when the time is over, or
when nobody waits for its image any more. It leaves Python's lock to the server, and a decoder that crashes
ends nothing else. This file loads no torch, so a process starts in a fraction of a second.
"""

import asyncio
import io
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import SplitResult, urlsplit
from weakref import WeakValueDictionary

from anyio import BrokenWorkerProcess, CapacityLimiter, to_process, to_thread
from PIL import Image
from pydantic import Field, IPvAnyNetwork
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from grainline.config import Config
from grainline.data.decode import FORMATS, Square, decode, formats_of
from grainline.data.record import CorruptSample, Record

UPLOAD = "/api/search/image"
HEALTH = "/api/health"
REQUESTS = 256  # at a time, of any kind
BODY = 256 * 2**10  # bytes of a request without an image
IMAGE = 16 * 2**20  # bytes of a request with one
BUFFERED = 256 * 2**20  # bytes of all bodies together
SENDING = 20.0  # seconds for sending the body of a request
DECODERS = 2  # images that are decoded at a time, one of an address at least
SECONDS = 10.0  # for one image
QUALITY = 88  # of JPEGs
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


class Limits(Config):
    """Limits that a user may set."""

    batch: int = Field(16, gt=0)  # requests that the model answers together
    queue: int = Field(64, gt=0)  # requests that may wait for it
    share: float = Field(0.25, gt=0, le=1)  # of requests, bytes, queue, decoders: for one address
    behind_proxy: tuple[IPvAnyNetwork, ...] = ()  # proxies whose X-Forwarded-For counts


class Pool:
    """A resource of limited size."""

    def __init__(self, most: int, share: float) -> None:
        """most: units in all; share: of them for one address, one unit at least"""
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


def client_of(scope: Scope, proxies: Sequence[IPvAnyNetwork]) -> str:
    """The name under which a request counts.

    >>> def ask(peer, *values):
    ...     headers = [(b"x-forwarded-for", value) for value in values]
    ...     scope = {"type": "http", "client": (peer, 1), "headers": headers}
    ...     return client_of(scope, [ip_network("10.0.0.0/8")])
    >>> ask("1.2.3.4", b"9.9.9.9")  # not a listed proxy
    '1.2.3.4'
    >>> ask("10.0.0.1", b"6.6.6.6, 9.9.9.9", b"10.0.0.2:80"), ask("10.0.0.1", b"who?"), ask("10.0.0.1")
    ('9.9.9.9', '10.0.0.1', '10.0.0.1')
    >>> ask("::ffff:127.0.0.1"), ask("2001:db8::1:2:3:4"), ask("a socket")
    ('127.0.0.1', '2001:db8::/64', 'a socket')
    """
    address = str((scope.get("client") or ("",))[0])
    values = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")
    for value in reversed(values):
        before = parse_address(value.strip()) or parse_address(host_of(value.strip()))
        if not before or not any(ip_address(address) in network for network in proxies):
            break
        address = str(before)
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

    Where other machines can reach it, every IP address does, which cannot be rebound, and the machine's name.

    >>> [is_own_name(name, "127.0.0.1") for name in ("localhost", "127.0.0.1", "192.168.0.7", "evil.example")]
    [True, True, False, False]
    >>> is_own_name("192.168.0.7", "0.0.0.0"), is_own_name("evil.example", "0.0.0.0")
    (True, False)
    """
    if name in ("localhost", "127.0.0.1", "::1", host.lower()):
        return True
    return not local(host) and (parse_address(name) is not None or name == socket.gethostname().lower())


class Decoders:
    """Processes that decode images, in the order of requests; those of one address wait for each other."""

    def __init__(self, share: float) -> None:
        self.of_one = max(1, int(DECODERS * share))  # images of one address at a time
        self.all, self.processes = asyncio.Semaphore(DECODERS), CapacityLimiter(DECODERS)
        self.own: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # while it is in use

    async def run(self, client: str, read: Callable[[], bytes], work: Callable[..., Any], *args: Any) -> Any:
        """`work`, of this file, on bytes from `read`; killed when this is cancelled. Raises HTTPException."""
        own = self.own.setdefault(client, asyncio.Semaphore(self.of_one))
        async with own, self.all:
            data = await to_thread.run_sync(read)
            try:
                async with asyncio.timeout(SECONDS):
                    run = to_process.run_sync
                    return await run(work, data, *args, cancellable=True, limiter=self.processes)
            except TimeoutError:
                raise HTTPException(413, f"the image takes longer than {SECONDS:g} s to decode") from None
            except BrokenWorkerProcess:
                raise HTTPException(415, "the image ended its decoder") from None


def square_of(data: bytes, square: Square, pixels: int) -> Image.Image:
    """The square that a model reads of an image, with a rim. HTTPException for none or too many pixels."""
    try:
        with Image.open(io.BytesIO(data), formats=formats_of("the image", data)) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        width = height = pixels  # Pillow will not say how large it is
    except CorruptSample as error:  # a HEIC or AVIF without its decoder
        raise HTTPException(415, f"this server cannot read it: {error.cause}") from None
    except Exception:
        raise HTTPException(415, f"this is no image; allowed are {', '.join(FORMATS)}") from None
    if width * height > pixels:
        raise HTTPException(413, f"the image is too large; at most {pixels:,} pixels are allowed")
    try:
        return square.cut(decode(Record("image", data, ())), rim=True)
    except CorruptSample as error:
        raise HTTPException(415, f"the image cannot be used: {error.where}") from None


def thumbnail(data: bytes, side: int) -> bytes:
    """An image as a JPEG whose longer side has at most `side` pixels, upright, without its metadata."""
    out = io.BytesIO()
    try:
        image = decode(Record("image", data, ()), draft=side)
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
        image.save(out, "JPEG", quality=QUALITY)
    except (CorruptSample, OSError) as error:
        raise HTTPException(400, str(error)) from None
    return out.getvalue()


def error_response(status: int, why: str) -> JSONResponse:
    headers = {"Retry-After": "1"} if status == 503 else None
    return JSONResponse({"error": " ".join(why.split())}, status, headers)


class Guard:
    """ASGI middleware that checks requests and reads their bodies."""

    def __init__(self, app: ASGIApp, limits: Limits, host: str) -> None:
        """host: where the server listens"""
        self.app, self.limits, self.host = app, limits, host
        self.requests, self.bytes = Pool(REQUESTS, limits.share), Pool(BUFFERED, limits.share)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sent: list[str] = []
        send = _with_headers(send, scope["path"], sent)
        client = client_of(scope, self.limits.behind_proxy)
        runs = scope["path"] != HEALTH and self.requests.take(client)
        pieces: list[bytes] = []
        try:
            self._admit(scope, runs)
            await self._read(scope, receive, client, pieces)
            body = [b"".join(pieces)]

            async def replayed() -> Message:
                return {"type": "http.request", "body": body.pop()} if body else await receive()

            await self.app(scope, replayed, send)
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
            if runs:
                self.requests.give(client)
            self.bytes.give(client, sum(map(len, pieces)))

    def _admit(self, scope: Scope, runs: bool) -> None:
        """Raises HTTPException. runs: whether the request is among those that may run"""
        headers, path = Headers(scope=scope), scope["path"]
        name = host_of(headers.get("host", ""))
        if not is_own_name(name, self.host):
            raise HTTPException(421, f"this server does not go by the name {name!r}")
        if path.startswith("/api/") and not _same_site(headers):
            raise HTTPException(403, "requests from other sites are not answered")
        if not runs and path != HEALTH:
            raise HTTPException(503, "too many requests at a time; try again in a moment")
        if scope["method"] == "POST":
            expected = "multipart/form-data" if path == UPLOAD else "application/json"
            if headers.get("content-type", "").partition(";")[0].strip().lower() != expected:
                raise HTTPException(415, f"the content type must be {expected}")

    async def _read(self, scope: Scope, receive: Receive, client: str, pieces: list[bytes]) -> None:
        """Read the whole body into a list. Raises HTTPException."""
        most = IMAGE if scope["path"] == UPLOAD else BODY
        too_large = HTTPException(413, f"the request is too large; at most {most:,} bytes are allowed")
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdecimal() or int(length) > most:
            raise too_large
        message: Message = {"more_body": True}
        try:
            async with asyncio.timeout(SENDING):
                while message.get("more_body", False):
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise HTTPException(400, "the request was broken off")
                    piece = message.get("body", b"")
                    if sum(map(len, pieces)) + len(piece) > most:
                        raise too_large
                    if not self.bytes.take(client, len(piece)):
                        raise HTTPException(503, "too much is being sent at a time; try again in a moment")
                    pieces.append(piece)
        except TimeoutError:
            raise HTTPException(408, f"the request was not sent within {SENDING:g} s") from None


def _same_site(headers: Headers) -> bool:
    """Whether the browser says that the request is same-origin; other programs send no such header."""
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or _parts(origin).netloc == headers.get("host")


def _with_headers(send: Send, path: str, kinds: list[str]) -> Send:
    """A `send` that adds HEADERS. kinds: gets the type of every message"""

    async def sent(message: Message) -> None:
        kinds.append(message["type"])
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers.update(HEADERS)
            headers.setdefault("Cache-Control", "no-store" if path.startswith("/api/") else "no-cache")
        await send(message)

    return sent

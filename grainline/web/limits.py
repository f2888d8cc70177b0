"""Limits of the server: sizes, times, numbers of requests."""

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated, Any

from pydantic import Field, PlainValidator

from grainline.config import Config

CHARACTERS = 20_000
"""Of a text: some 200 sentences."""

HITS = 100
"""Images in an answer."""


def _network(value: Any) -> IPv4Network | IPv6Network:
    """An address or a network of them. Raises ValueError in plain words."""
    try:
        return ip_network(value)
    except ValueError:
        raise ValueError("an address or a network is needed, such as 10.0.0.1 or 10.0.0.0/8") from None


Network = Annotated[IPv4Network | IPv6Network, PlainValidator(_network)]


class Limits(Config):
    """Limits of a server. Sizes are in bytes, times in seconds."""

    batch: int = Field(16, gt=0)  # requests that the model answers together
    queue: int = Field(64, gt=0)  # requests that may wait for it
    requests: int = Field(256, gt=0)  # requests of any kind at a time
    connections: int = Field(1024, gt=0)  # browsers keep some open between requests
    share: float = Field(
        0.25, gt=0, le=1
    )  # of connections, requests, bytes, queue, decoders: for one address
    behind_proxy: tuple[Network, ...] = ()  # proxies whose X-Forwarded-For counts
    body: int = Field(256 * 2**10, gt=0)  # of a request without an image
    upload: int = Field(16 * 2**20, gt=0)  # of a request with an image
    buffered: int = Field(256 * 2**20, gt=0)  # of all bodies together
    pixels: int = Field(40_000_000, gt=0)  # of an image that is sent
    side: int = Field(2048, gt=0)  # of an image that is shown, longer side in pixels
    decoders: int = Field(2, gt=0)  # images that are decoded at a time, one of an address at least
    decoding: float = Field(10.0, gt=0)  # for one image
    idle: float = Field(5.0, gt=0)  # for the first byte of a request, from the first moment on
    headers: float = Field(10.0, gt=0)  # from that byte to the end of the headers
    sending: float = Field(20.0, gt=0)  # for sending the body of a request
    patience: float = Field(30.0, gt=0)  # for the answer to a whole request
    grace: float = Field(3.0, gt=0)  # for requests under way once the server has to end

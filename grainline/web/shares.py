"""Who uses how much: of connections, requests and bytes one address gets at most a share.

An IPv6 address counts as its network of 64 bits, since one machine can use all addresses of it. A proxy that
the user lists speaks for many clients: for its requests the address in X-Forwarded-For counts, from the right
the first one that belongs to no listed proxy.
"""

from collections import Counter
from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from starlette.datastructures import Headers
from starlette.types import Scope

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

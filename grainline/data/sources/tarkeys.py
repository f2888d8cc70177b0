"""Keys as names of members: what comes before the first dot of a name is all that a tar can say of a key.

A tar of `grainline data pack` says in its global header that its names are quoted, with percent signs as in
URLs, so that any key comes back. Other programs see the quoted names.
"""

from urllib.parse import quote, unquote

HEADER = {"GRAINLINE.keys": "quoted"}

_PLAIN = "/ ,+=@()"


def quoted(key: str) -> str:
    """A key as the name of a member, without its suffix: ASCII, no dots, no slash at its ends.

    >>> quoted("cats/a.v2.jpg"), quoted("/b"), quoted("rows.parquet:7")
    ('cats/a%2Ev2%2Ejpg', '%2Fb', 'rows%2Eparquet%3A7')
    """
    assert key, "no key"
    name = quote(key, safe=_PLAIN, errors="surrogatepass").replace(".", "%2E")
    name = f"%2F{name[1:]}" if name.startswith("/") else name
    return f"{name[:-1]}%2F" if name.endswith("/") else name


def unquoted(name: str) -> str:
    """The key that `quoted` made a name of."""
    return unquote(name, errors="surrogatepass")

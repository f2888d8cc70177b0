"""What the server accepts and holds at most, so that no request can take it down."""

from pydantic import Field

from grainline.config import Config

CHARACTERS = 20_000
"""Of a text: some 200 sentences."""

HITS = 100
"""Pictures in an answer."""


class Limits(Config):
    """Limits of a server. Sizes are in bytes, times in seconds."""

    batch: int = Field(16, gt=0)  # requests that the model answers together
    queue: int = Field(64, gt=0)  # requests that may wait for it
    requests: int = Field(256, gt=0)  # requests of any kind at a time
    body: int = Field(256 * 2**10, gt=0)  # of a request without a picture
    upload: int = Field(16 * 2**20, gt=0)  # of a request with a picture
    held: int = Field(256 * 2**20, gt=0)  # of all bodies together
    pixels: int = Field(40_000_000, gt=0)  # of a picture that is sent
    side: int = Field(2048, gt=0)  # of a picture that is shown, longer side in pixels
    decoders: int = Field(2, gt=0)  # pictures that are decoded at a time
    sending: float = Field(20.0, gt=0)  # for sending the body of a request
    patience: float = Field(30.0, gt=0)  # for waiting for the model

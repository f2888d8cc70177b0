"""What tokenizers return."""

import os
from typing import NamedTuple

# Loader workers are processes already. Unset, the library would start threads in the parent, then find
# itself forked and print a warning in every worker.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Tokenized(NamedTuple):
    """Ids of some texts, each from its begin token to its end token, and what was cut off."""

    ids: list[list[int]]
    lost: list[int]  # tokens of each text that did not fit

    @property
    def cut(self) -> list[bool]:
        """Which texts were longer than the context."""
        return [number > 0 for number in self.lost]

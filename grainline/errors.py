"""Errors that are the user's to mend: one line with what was found, what is allowed and where to look."""


class UserError(ValueError):
    """A mistake in what we were given, not in our code. The command line prints it without a traceback.

    The message is one line: what was found, what is allowed, where to look.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))

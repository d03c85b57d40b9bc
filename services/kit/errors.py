"""Errors that a user can act on."""


class UserError(Exception):
    """Something the user can mend: says what is wrong, where, and what to do.

    The command line prints it without a traceback and ends with `exit_code`: 1 for bad data, 2 for bad
    configuration or usage (UsageError), 3 for a server that cannot be reached (ServerError).
    """

    def __init__(self, message: str, *, remedy: str = "", exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.exit_code = exit_code

    def __str__(self) -> str:
        """Return the message, and the remedy on a line of its own."""
        return f"{self.message}\n  remedy: {self.remedy}" if self.remedy else self.message


class UsageError(UserError):
    """Bad configuration or usage."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy, exit_code=2)


class ServerError(UserError):
    """A server, or a driver, that cannot be reached or does not answer as it should."""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy, exit_code=3)


class TooMuchError(UserError):
    """What came in, or what it unpacks to, is more than may be."""

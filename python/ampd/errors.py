"""What can go wrong, as a small tree of exceptions. Each has `code`, `reason` and `remedy` beside its sentence."""
from __future__ import annotations

import re


def _remedy_in(text: str) -> str:
    """The remedy stands behind the last semicolon. A semicolon in parentheses does not count, and what begins with
    "last: " is what a Timeout has seen last, no remedy."""
    masked, before = text, ""
    while masked != before:  # from the innermost on
        before, masked = masked, re.sub(r"\([^()]*\)", lambda one: "_" * len(one[0]), masked)
    at = masked.rfind("; ")
    return text[at + 2:].rstrip(".") if at >= 0 and not text.startswith("last: ", at + 2) else ""


class Error(Exception):
    """The root. `code` is the library's name of the error (``"EUNAVAILABLE"``), `reason` one word of the server's
    (``"RANK_TAKEN"``; ``""``: none), `remedy` what to do."""

    code = "EUNKNOWN"
    remedy = "see the text"

    def __init__(self, text: str, *, code: str | None = None, reason: str = "", remedy: str | None = None):
        super().__init__(text)
        self.code = code or type(self).code
        self.reason = reason
        self._say(text, remedy)

    def _say(self, text: str, remedy: str | None = None) -> None:
        """Another sentence for the same error."""
        self.args = (text,)
        self.remedy = remedy or _remedy_in(text) or type(self).remedy


class InvalidArgument(Error, ValueError):
    """A value, a shape, a dtype or an option that cannot be."""

    code, remedy = "EINVAL", "correct the value that the text names"


class NotFound(Error, LookupError):
    """No such model, parameter, step, checkpoint or file."""

    code, remedy = "ENOTFOUND", "correct the name, the path or the step that the text has"


class AlreadyExists(Error):
    """A model of this name has another specification."""

    code, remedy = "EEXIST", "give the model another name, or the specification that it has"


class WrongState(Error):
    """Not possible now."""

    code, remedy = "ESTATE", "call it in the state that the text names"


class RankTaken(Error):
    """Another process has this worker's rank, and this one has stopped."""

    code, remedy = "EABORTED", "end this process, or give each process a rank of its own"


class Unstable(Error):
    """The loss scale is at its floor, and floor_policy is "fail": training should end."""

    code, remedy = "EUNSTABLE", "look at the parameters that the text names, then set the scale or roll back"


class Unavailable(Error, ConnectionError):
    """No server answers."""

    code, remedy = "EUNAVAILABLE", "start the server, or correct its address"


class Timeout(Error, TimeoutError):
    """The time limit of a call has passed."""

    code, remedy = "EDEADLINE", "see what the model waits for, or give the call more time"


class Denied(Error, PermissionError):
    """The server wants a token or a certificate, or this one may not do it."""

    code, remedy = "EDENIED", "give token_file, or cert and key, of somebody who may"


class ResourceExhausted(Error):
    """A limit of the server is reached: memory, a quota, or a number of models, workers or calls."""

    code, remedy = "EEXHAUSTED", "raise the limit that the text names, or wait until others need less"


class OutOfMemory(ResourceExhausted, MemoryError):
    """There is no memory in this process."""

    code, remedy = "ENOMEM", "free some memory"


class DataLoss(Error):
    """Bytes were damaged, or are gone."""

    code, remedy = "EDATALOSS", "see the server's log"


class Internal(Error):
    """A fault of the library or the server."""

    code, remedy = "EINTERNAL", "close this client and make another one"


class Cancelled(Error):
    """The call was ended by this side."""

    code, remedy = "ECANCELLED", "call again"


_BY_CODE = {cls.code: cls for cls in (InvalidArgument, NotFound, AlreadyExists, WrongState, RankTaken, Unstable,
                                      Unavailable, Timeout, Denied, ResourceExhausted, OutOfMemory, DataLoss, Internal,
                                      Cancelled)}
_BY_CODE.update(ERANGE=InvalidArgument, EUNAUTHENTICATED=Denied, ELOCKED=WrongState,
                EVERSION=WrongState, EIO=Error, EUNIMPLEMENTED=Error, EUNKNOWN=Error)


def error_of(code: str, text: str, reason: str = "") -> Error:
    """The exception of a code of the library."""
    if reason in ("STEP_NOT_DECIDED", "HISTORY_GONE"):  # what was asked for is not there yet, or no longer
        return NotFound(text, code=code, reason=reason)
    if reason == "RESERVED_VALUE":  # of a specification
        return InvalidArgument(text, code=code, reason=reason)
    return _BY_CODE.get(code, Error)(text or code, code=code, reason=reason)

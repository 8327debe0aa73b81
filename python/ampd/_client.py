"""A connection to a server: calls of the library that wait, can be interrupted, and raise ampd.Error."""
from __future__ import annotations

import atexit
import logging
import math
import operator
import os
import re
import threading
import time
import weakref
from collections.abc import Callable

from ampd import errors
from ampd._library import CODES, ffi, lib, text

log = logging.getLogger("ampd")

DEFAULT_ENDPOINT = "127.0.0.1:7420"
LIMIT_MAX_S = 1e9  # of a call's time; whoever gives an Inf waits as long
RECONNECT_S = 600.0  # how long a lost server is waited for, as the library does, if nothing else was said
CALL_S = 60.0  # call_timeout, likewise
CLOSE_WAIT_S = 10  # for a call of another thread to end, which is asked to; the library asks every 50 ms

_LEVELS = {lib.AMPCLIENT_LOG_DEBUG: logging.DEBUG, lib.AMPCLIENT_LOG_INFO: logging.INFO,
           lib.AMPCLIENT_LOG_WARN: logging.WARNING, lib.AMPCLIENT_LOG_ERROR: logging.ERROR}


class _OwnThread(threading.local):
    """Whether this is a client's own thread, which is in a callback: its connection waits for that."""

    here = False

    def __enter__(self):
        self.here = True

    def __exit__(self, *what):
        self.here = False


_own_thread = _OwnThread()


@ffi.callback("void(void *, enum ampclient_log_level, const char *)")
def _log(arg, level, line):
    with _own_thread:
        log.log(_LEVELS.get(level, logging.INFO), "%s", in_own_names(text(line)))


def struct(name: str, **fields):
    """A struct of the library with its size filled in, as its _INIT macro does."""
    made = ffi.new("struct %s *" % name)
    made.size = ffi.sizeof("struct " + name)
    for field, value in fields.items():
        put(made, field, value)
    return made


def put(made, field: str, value, name: str | None = None, *, above_zero: bool = False) -> None:
    """Sets a field of a struct of the library, whose name for the caller is `name`. Refused is what does not fit, and
    what would mean another value there: a 0 where the library has a default in its place (`above_zero`), and a number
    that is so small that it is 0 in the field's type."""
    kind = ffi.typeof(made)
    kind = dict((kind.item if kind.kind == "pointer" else kind).fields)[field].type
    words = "True or False" if kind.cname == "_Bool" else "a number"
    try:
        if kind.kind == "primitive" and words == "a number" and kind.cname not in ("float", "double"):
            words = "a whole number"
            if int(ffi.cast(kind, -1)) > 0:
                words += ", %d to %d" % (above_zero, int(ffi.cast(kind, -1)))
            value = operator.index(value)
        setattr(made, field, value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last one is torch's, of a tensor
        raise errors.InvalidArgument("%s is %s; give %s" % (name or field, shown(value), words)) from None
    if kind.kind == "primitive" and getattr(made, field) == 0:
        if value != 0:
            raise errors.InvalidArgument("%s is %s, which is rounded to 0; give a larger number"
                                         % (name or field, shown(value)))
    if above_zero and not 0 < getattr(made, field) < math.inf:
        raise errors.InvalidArgument("%s is %s, which is not possible; give a number above 0"
                                     % (name or field, shown(value)))


def milliseconds(seconds: float, what: str, *, least: int = 1, most_s: float = math.inf) -> int:
    """Of a time in seconds, whose name for the caller is `what`."""
    try:
        made = round(float(min(seconds, most_s) * 1000))
    except (TypeError, ValueError, OverflowError):  # a NaN and an Inf among them
        made = -1
    if made < least:
        raise errors.InvalidArgument("%s is %s; give seconds, %s or more" % (what, shown(seconds),
                                                                            "0.001" if least else "0"))
    return made


#: What a caller of this package has in place of what sentences of the library and the server name: functions,
#: programs, and fields of a specification (proto/spec_fields.def) that are called otherwise here.
_NAMES = {
    "ampclient_step_begin": "job.begin()", "ampclient_step_end": "step.end()", "ampclient_pull": "job.pull()",
    "ampclient_push": "step.push", "ampctl models lists": "ampd.connect(...).models() lists",
    "why by ampctl explain": "why by ampd.connect(...).explain(model, step)",
    "optimizer.kind": "optimizer", "optimizer.learning_rate": "optimizer.lr",
    "optimizer.learning_rate_decay": "optimizer.lr_decay", "optimizer.beta1": "optimizer.betas[0]",
    "optimizer.beta2": "optimizer.betas[1]", "optimizer: beta1": "optimizer: betas[0]",
    "optimizer: beta2": "optimizer: betas[1]", "optimizer.epsilon": "optimizer.eps",
    "schedule.kind": "schedule", "schedule.warmup_steps": "schedule.warmup", "schedule.total_steps": "schedule.total",
    "schedule.min_learning_rate": "schedule.min_lr",
    "clip.value": "clip_value", "clip.max_norm": "clip_norm", "clip.scope": "clip_scope",
    "clip.scope GROUP": 'clip_scope="group"', "weighting PUSHED": 'weighting="pushed"',
    "groups.max_norm": "groups: clip_norm", "groups.learning_rate_factor": "groups: lr_factor",
    "groups.weight_decay": "groups: weight_decay",
    "schedule WORKER": "schedule=ampd.Worker()",
    "give that of the step with each push": "call job.set_learning_rate before the first push of the step",
    "a Load of the initial values": "its first values, which rank 0 gives as it joins",
    "sync_mode": "sync_mode (QUORUM where quorum is given)", "cast_dtype": "cast",
    "loss_timeout_ms": "loss_timeout (in milliseconds)",
    "raise call_timeout_ms": "raise call_timeout"}
_NAMED = re.compile(r"\b(%s)\b" % "|".join(re.escape(one) for one in sorted(_NAMES, key=len, reverse=True)))


def in_own_names(sentence: str) -> str:
    return _NAMED.sub(lambda found: _NAMES[found[0]], sentence)


def raise_code(code: int, sentence: str, reason: str = ""):
    raise errors.error_of(CODES.get(code, "EUNKNOWN"), in_own_names(sentence), reason)


def shown(value) -> str:
    """A value for a sentence: itself where it is short, else of what type it is."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else "a %s" % type(value).__name__


def utf8(name: str, what: str) -> bytes:
    if not isinstance(name, str):
        raise errors.InvalidArgument("%s is %s; give a string" % (what, shown(name)))
    if "\0" in name:
        raise errors.InvalidArgument("%s is %r, which contains a zero character; remove it" % (what, name))
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise errors.InvalidArgument("%s is %r, which is not UTF-8 text; give another" % (what, name)) from None


def endpoint_of(given: str | None) -> str:
    """None: AMPD_ENDPOINT of the environment, as ampd.launch sets it; else ampd's own default on this machine."""
    return given if given is not None else os.environ.get("AMPD_ENDPOINT") or DEFAULT_ENDPOINT


class Client:
    """A handle of the library. Calls take their turn; each may be made by any thread."""

    _handle = ffi.NULL

    def __init__(self, endpoint: str, *, cacert: str | None = None, cert: str | None = None, key: str | None = None,
                 server_name: str | None = None, token_file: str | None = None, token_over_plaintext: bool = False,
                 connect_timeout: float | None = None, reconnect_timeout: float | None = None,
                 call_timeout: float | None = None, step_timeout: float | None = None):
        self._process = os.getpid()
        self.endpoint = endpoint
        self._turn = threading.RLock()
        self._calling = 0  # the thread that is in a call: what that uses stays
        self._interrupt: BaseException | None = None
        self.stopping = False  # set by another thread: the call that waits ends
        self._silent_at = math.inf  # when the next message of a stream has taken too long
        self._kept: list = []  # what must live until the library has let go of it
        names = {"cacert": cacert, "cert": cert, "key": key, "server_name": server_name, "token_file": token_file}
        limits = {"connect_timeout": connect_timeout, "reconnect_timeout": reconnect_timeout,
                  "call_timeout": call_timeout, "step_timeout": step_timeout}
        #: For another connection of the same kind.
        self.options = {**names, **limits, "token_over_plaintext": token_over_plaintext}
        strings = {field: ffi.new("char[]", utf8(os.fspath(value) if isinstance(value, os.PathLike) else value, field))
                   for field, value in names.items() if value is not None}
        self._asks = ffi.callback("bool(void *)", self._asked, error=True, onerror=self._keep_interrupt)
        # Of those that the logger may want; it decides itself what is shown.
        level = lib.AMPCLIENT_LOG_DEBUG if log.isEnabledFor(logging.DEBUG) else lib.AMPCLIENT_LOG_INFO
        options = struct("ampclient_options", token_over_plaintext=token_over_plaintext, log_cb=_log, log_level=level,
                         interrupt_cb=self._asks, **strings,
                         **{field + "_ms": milliseconds(seconds, field, most_s=LIMIT_MAX_S)
                            for field, seconds in limits.items() if seconds is not None})
        place, error = ffi.new("struct ampclient **"), ffi.new("struct amp_error *")
        code = lib.ampclient_connect(utf8(endpoint, "endpoint"), options, place, error)
        self._handle = place[0]
        if self._interrupt is not None:
            self.close()
        self._raise_interrupt()
        if code != 0:
            raise_code(code, text(error.text), text(error.reason))
        _open.add(self)

    @classmethod
    def refuse_options(cls, caller: str, options: dict, place_of: Callable[[str], str] = lambda name: "") -> None:
        """Python's own error for a misspelt option, in the name of the function that was called; `place_of` says where
        it goes instead."""
        for name in options:
            if name not in cls.__init__.__kwdefaults__:
                raise TypeError("%s() got an unexpected keyword argument %r%s" % (caller, name, place_of(name)))

    def _asked(self, arg) -> bool:
        # Python looks for signals when a function begins: Ctrl-C is raised here, and kept for when the call returns.
        return self.stopping or self._interrupt is not None or time.monotonic() > self._silent_at

    def _keep_interrupt(self, kind, value, traceback):
        self._interrupt = value

    def _raise_interrupt(self) -> None:
        interrupt, self._interrupt = self._interrupt, None
        if interrupt is not None:
            raise interrupt.with_traceback(None)

    @property
    def handle(self):
        if not self._handle:
            raise errors.WrongState("the connection to %s is closed; make another one" % self.endpoint)
        return self._handle

    def call(self, function, *args, take=int):
        """Calls a function that takes the client or one of its models, and raises what it says. Returns 0 or 1, or what
        `take` makes of it while no other call writes over what the library has said."""
        self.refuse_within_call()
        with self._turn:
            self._calling = threading.get_ident()
            try:
                handle = self.handle
                code = function(*args)
                if self._interrupt is not None:
                    self._raise_interrupt()
                if code < 0:
                    raise_code(code, text(lib.ampclient_error_text(handle)), text(lib.ampclient_error_reason(handle)))
                return take(code)
            finally:
                self._calling = 0

    @property
    def is_foreign(self) -> bool:
        """This process is a forked child of the one that has made it: it has a copy that nobody may use."""
        return os.getpid() != self._process

    def refuse_within_call(self) -> None:
        """A handler of the logger, and a signal handler of the thread that waits in a call: that one would have its
        turn in spite of it. And a forked child: the library's thread does not exist there, and nothing would answer."""
        if os.getpid() != self._process:
            raise errors.WrongState("the connection to %s was made before this process was forked; make another one "
                                    "here" % self.endpoint)
        if _own_thread.here:
            raise errors.WrongState("a handler of the logger ampd may not call %s: all calls of a client wait while "
                                    "it handles a line; pass the line to another thread by a queue.Queue"
                                    % self.endpoint)
        if self._calling == threading.get_ident():
            raise errors.WrongState("a call to %s waits; in a signal handler raise SystemExit or KeyboardInterrupt, "
                                    "which ends it, and continue after it" % self.endpoint)

    def ask(self, method: str, request: bytes) -> bytes:
        """A method of the server that answers once."""
        place, size = ffi.new("void **"), ffi.new("size_t *")
        return self.call(lib.ampclient_call, self.handle, method.encode(), request, len(request),
                         ffi.cast("const void **", place), size,
                         take=lambda _: bytes(ffi.buffer(place[0], size[0])) if size[0] > 0 else b"")

    def stream(self, method: str, request: bytes, take, silence_s: float = math.inf) -> None:
        """A method that answers with a stream: `take(bytes)` is called on the library's thread with each message. It is
        ended (Cancelled) where none has come for so many seconds."""
        @ffi.callback("int(void *, const uint8_t *, size_t)", error=-1, onerror=self._keep_interrupt)
        def message(arg, data, size):
            with _own_thread:
                take(bytes(ffi.buffer(data, size)))
            self._silent_at = time.monotonic() + silence_s
            return 0

        def stream(*args):
            self._silent_at = time.monotonic() + silence_s
            try:
                return lib.ampclient_call_stream(*args)
            finally:
                self._silent_at = math.inf

        self.call(stream, self.handle, method.encode(), request, len(request), message, ffi.NULL)

    def close(self, *, keeps=None) -> None:
        """Ends the connection, and a call of another thread that waits in it. Leases of its workers are left to run
        out. May be called again. In a signal handler it ends the call that was interrupted, and that is all. What it
        `keeps` lives until the library has let go of it."""
        if self._handle == ffi.NULL and keeps is None:
            return
        if self.is_foreign:
            self._handle = ffi.NULL
            return
        self.stopping = True
        if keeps is not None:
            self._kept.append(keeps)
        if _own_thread.here:  # it would wait for its own end, in a handler of the logger or as garbage is collected
            threading.Thread(target=self.close, name="ampd-close").start()
            return
        if not self._turn.acquire(timeout=CLOSE_WAIT_S):
            log.warning("a call to %s does not end; its connection stays open", self.endpoint)
            return
        try:
            if not self._calling:
                handle, self._handle = self._handle, ffi.NULL
                _open.discard(self)
                if handle != ffi.NULL:
                    lib.ampclient_close(handle)
                self._kept.clear()
        finally:
            self._turn.release()

    def __del__(self):
        self.close()

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.close()

    def __repr__(self):
        return "<ampd client of %s%s>" % (self.endpoint, " (closed)" if self._handle == ffi.NULL else "")


_open: "weakref.WeakSet[Client]" = weakref.WeakSet()


@atexit.register
def _close_all():
    # Before Python goes: the library's thread calls into it to log.
    for client in list(_open):
        client.close()

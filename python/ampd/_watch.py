"""Server.watch: rows of the history as they are decided, over a connection of its own, and over restarts of the server.

A thread has the stream and puts rows into a queue; the program takes them out. The library allows one call at a time
on a connection, so the stream, which is one long call, needs another one.
"""
from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref

from ampd import _messages, _rows, errors
from ampd._client import RECONNECT_S, Client

# A program that looks seldom finds so many rows waiting, about 2 MiB. With more the stream ends, so that the library's
# thread never waits for the program, and begins again behind them when half of them are taken.
QUEUE_ROWS_MAX = 4096
RETRY_PAUSE_S = 0.2       # between two tries to reach a server that is lost, or a model that is recovering
FULL_PAUSE_S = 0.05       # between two looks whether rows have been taken
ALIVE_S = 0.5             # how often who waits looks whether the thread is there
JOIN_S = 5.0              # for the thread to end; a call that waits is ended within 50 ms

_END = object()


class _Stop(Exception):
    """The program has enough."""


class _Full(Exception):
    """The queue is full."""


class _Done(Exception):
    """That was the last row."""


class _Client(Client):
    """Ends what it waits for, the first connection too, when an event is set."""

    def __init__(self, stop: threading.Event, endpoint: str, **options):
        self._stop = stop
        super().__init__(endpoint, **options)

    def _asked(self, arg) -> bool:
        return self._stop.is_set()


class _Stream:
    """What the thread works on. It knows nothing of the Watch, so that a Watch which nobody holds any more ends it.
    `about` is GetModel's answer."""

    def __init__(self, client: Client, model: str, from_step: int | None, about):
        self.endpoint, self.options, self.model = client.endpoint, client.options, model
        self.rows: queue.Queue = queue.Queue(QUEUE_ROWS_MAX)
        self.stop = threading.Event()
        start, self.max_steps = about.status, about.spec.max_steps
        self.begin = start.step if from_step is None else from_step  # where the next stream begins
        # The place of the last row, and which rows there have come: what a stream says again is dropped.
        self.last = (0, 0) if from_step is not None else (start.epoch, start.step)
        self.known: set = set()
        self.moved = True             # a row has come since the last failure
        self.thread = threading.Thread(target=self._run, name="ampd-watch-" + model, daemon=True)

    def end(self) -> None:
        self.stop.set()

    # ---- on the library's thread ----

    def _take(self, data: bytes) -> None:
        if self.stop.is_set():
            raise _Stop
        row = _rows.history(_messages.answer("WatchSteps", data).row)
        place = (row.epoch, row.step)
        mark = (row.kind, row.time)
        if place < self.last or (place == self.last and mark in self.known):
            return
        try:
            self.rows.put_nowait(row)
        except queue.Full:
            raise _Full from None
        if place != self.last:
            self.last = place
            self.known.clear()
        self.known.add(mark)
        self.moved = True
        # Shard 0 ends the stream there by itself; another shard may hear that the model is done after its last row.
        if row.kind == "step" and 0 < self.max_steps <= row.step:
            raise _Done

    # ---- on the thread ----

    def _put(self, item) -> None:
        while not self.stop.is_set():
            try:
                return self.rows.put(item, timeout=ALIVE_S)
            except queue.Full:
                pass

    def _run(self) -> None:
        try:
            with _Client(self.stop, self.endpoint, **self.options) as client:
                self._follow(client)
            self._put(_END)
        except BaseException as error:  # noqa: B902 (whatever it is, the program's thread raises it)
            self._put(error.with_traceback(None))

    def _follow(self, client: Client) -> None:
        lost, resumes = None, False
        while not self.stop.is_set():
            try:
                if resumes:
                    self._resume(client)
                resumes = True
                client.stream(*_messages.request("WatchSteps", model=self.model, from_step=self.begin), self._take)
                return
            except _Done:
                return
            except _Full:
                while self.rows.qsize() > QUEUE_ROWS_MAX // 2 and not self.stop.wait(FULL_PAUSE_S):
                    pass
            except errors.Error as error:
                if not isinstance(error, errors.Unavailable) and error.reason != "SLOW_READER":
                    raise
                if self.moved or lost is None:
                    self.moved, lost = False, time.monotonic()
                if time.monotonic() - lost > (self.options.get("reconnect_timeout") or RECONNECT_S):
                    raise
                self.stop.wait(RETRY_PAUSE_S)

    def _ask(self, client: Client, method: str, **fields):
        return _messages.answer(method, client.ask(*_messages.request(method, model=self.model, **fields)))

    def _resume(self, client: Client) -> None:
        """Finds the step from which on rows may be new. After a crash or a rollback that is one behind which the
        present epochs began."""
        status = self._ask(client, "GetModel").status
        if status.recovering:
            raise errors.Unavailable("the model %s is recovering, and waits for %s; see the server's log"
                                     % (self.model, status.waiting_for), reason="RECOVERING")
        epoch, step = self.last
        if status.epoch < epoch:
            raise errors.NotFound("the model %s that was watched is gone, and another one has its name; watch that one"
                                  % self.model)
        begin = max(step - 1, 0)  # acts on the scale stand behind the step before the one that they name
        for new in range(epoch + 1, status.epoch + 1):
            page = self._ask(client, "ListScaleHistory", epoch=new, include_superseded=True, page_size=1)
            begin = min([begin] + [row.base_step for row in page.rows])
        self.begin = begin if self.last != (0, 0) else self.begin


_streams: "weakref.WeakSet[_Stream]" = weakref.WeakSet()


@atexit.register
def _end_all():
    # Before connections are closed: nobody may be in a call of theirs.
    for stream in list(_streams):
        stream.end()
        stream.thread.join(JOIN_S)


class Watch:
    """An iterator over HistoryRow, as they are decided; ends when the model is done. A context manager."""

    def __init__(self, client: Client, model: str, from_step: int | None, about):
        self.model = model
        self._stream = _Stream(client, model, from_step, about)
        self._ended = False
        _streams.add(self._stream)
        weakref.finalize(self, self._stream.end).atexit = False
        self._stream.thread.start()

    def __iter__(self) -> "Watch":
        return self

    def __next__(self) -> _rows.HistoryRow:
        if self._ended:
            raise StopIteration
        try:
            item = self._wait()
        except BaseException:  # Ctrl-C among others
            self.close()
            raise
        if item is not _END and not isinstance(item, BaseException):
            return item
        self.close()
        if item is _END:
            raise StopIteration
        raise item

    def _wait(self):
        while True:
            try:
                return self._stream.rows.get(timeout=ALIVE_S)
            except queue.Empty:
                if self._stream.stop.is_set():  # closed by another thread, or a signal handler
                    return _END
                if not self._stream.thread.is_alive() and self._stream.rows.empty():
                    raise errors.WrongState("this watch of %s was begun by another process; begin one here"
                                            % self.model) from None

    def close(self) -> None:
        """Ends it. May be called again."""
        self._ended = True
        self._stream.end()
        if self._stream.thread is not threading.current_thread():
            self._stream.thread.join(JOIN_S)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *what) -> None:
        self.close()

    def __repr__(self):
        return "<ampd watch of %s on %s%s>" % (self.model, self._stream.endpoint, ", ended" if self._ended else "")

"""Let Ctrl-C, SIGTERM and SIGHUP, the *ending signals*, end a command in the same orderly way.

The signals raise KeyboardInterrupt, so that every `finally` and `with` block cleans up. That alone
is not enough, because libraries replace handlers of signals, and Python drops exceptions that are
raised in finalizers. So the number of every signal that arrives is also written to a pipe, by
Python itself, whatever its handler does. `received_signal` reads this pipe.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

INTERRUPTED = "interrupted: what is finished is kept; run the same command again to continue"
"""What a command says when it was ended by Ctrl-C."""

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end. SIGINT is that of Ctrl-C."""
_RESEND_SECONDS = 0.02
"""How long to wait until a finalizer has ended, before a signal is sent again."""


class _SignalLog:
    """The ending signals that have arrived since this log was created.

    Python writes a byte with the number of each signal to `writer`, the end of a pipe.
    """

    def __init__(self, ignored: Collection[signal.Signals]) -> None:
        """Begin a log.

        Args:
            ignored: Signals that are left out.
        """
        self._ignored = ignored
        self._received: list[signal.Signals] = []
        self._reader, self.writer = os.pipe()
        # Neither Python nor `first` may wait for the pipe.
        os.set_blocking(self._reader, False)
        os.set_blocking(self.writer, False)

    def first(self) -> signal.Signals | None:
        """Return the first signal that has arrived since this log was created, or None.

        Only signals that ask the process to end count, such as SIGINT (Ctrl-C).
        """
        try:
            numbers = os.read(self._reader, 1 << 16)  # one byte for each signal
        except BlockingIOError:
            numbers = b""
        for number in numbers:
            if number in _ENDING_SIGNALS and number not in self._ignored:
                self._received.append(signal.Signals(number))
        return self._received[0] if self._received else None

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._reader)
        os.close(self.writer)


_logs: list[_SignalLog] = []
"""The logs of the blocks of `interruptible` that this process is in, the innermost last."""


@contextmanager
def exit_on_sigint() -> Iterator[None]:
    """Let Ctrl-C in the `with` block end this process at once, with a message and no traceback.

    A command does this while it has nothing to clean up yet, such as during slow imports. By
    default, Python would print some thirty lines about the import that was running.

    Raises:
        SystemExit: The block raised it, since the command has ended.
    """
    # Replace only Python's own handler. Any other was set on purpose: a shell, for example, lets a
    # background job ignore Ctrl-C.
    previous_handler = signal.getsignal(signal.SIGINT)
    if previous_handler == signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)

    is_program_exiting = False
    try:
        yield
    except SystemExit:
        # Keep the handler until Python has exited: Ctrl-C must not print a traceback then, either.
        is_program_exiting = True
        raise
    finally:
        if not is_program_exiting:
            signal.signal(signal.SIGINT, previous_handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let all signals that end a process raise KeyboardInterrupt in the `with` block.

    By default, only Ctrl-C (SIGINT) does, so that a program can clean up. `kill` (SIGTERM) and a
    closed terminal (SIGHUP) end it on the spot:

        with interruptible():
            try:
                build()
            except KeyboardInterrupt:
                print("interrupted by", received_signal())  # such as SIGTERM

    A signal that this process was told to ignore, as `nohup` does with SIGHUP, stays ignored.
    """
    with handlers_restored():  # after the block
        ignored_signals = _raise_on_signals()
        # Note each signal for `received_signal`. Send a signal again if its KeyboardInterrupt is
        # lost, because Python was running a finalizer such as `__del__`.
        with _logged_signals(ignored_signals), _resent_from_finalizers():
            yield


def _raise_on_signals() -> list[signal.Signals]:
    """Let all signals that end a process raise KeyboardInterrupt, except those that are ignored.

    Returns:
        The signals that this process ignores, since the process that started it wants so.
    """
    ignored_signals = []
    for number in _ENDING_SIGNALS:
        handler = signal.getsignal(number)
        if handler == signal.SIG_IGN:
            ignored_signals.append(number)
        elif handler in (signal.SIG_DFL, _exit):
            # These end the process at once. Use Python's handler of Ctrl-C instead.
            signal.signal(number, signal.default_int_handler)
        # Any other handler stays, since it was set on purpose.
    return ignored_signals


@contextmanager
def signals_held() -> Iterator[Callable[[], None]]:
    """Hold back signals that end the process, such as Ctrl-C, until the block is ready for them.

    Here, a Ctrl-C before `release` raises KeyboardInterrupt in `release`. So it cannot arrive too
    early, when nobody would catch it:

        with signals_held() as release, interruptible():
            try:
                release()
                build()
            except KeyboardInterrupt:
                clean_up()

    Yields:
        A function that lets the signals arrive, also those that were held back.
    """
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)

    def release() -> None:
        """Let the signals arrive."""
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)

    try:
        yield release
    finally:
        release()  # in case that the block has not called it


@contextmanager
def _logged_signals(ignored_signals: Collection[signal.Signals]) -> Iterator[None]:
    """Note the signals that arrive in the `with` block, so that `received_signal` can return them.

    Args:
        ignored_signals: Signals that are not noted.
    """
    # Python can be told to write the number of each signal to a pipe as soon as it arrives. That
    # works even if a library replaces the handlers of signals.
    log = _SignalLog(ignored_signals)  # reads the pipe
    previous_pipe = signal.set_wakeup_fd(log.writer, warn_on_full_buffer=False)
    _logs.append(log)  # `received_signal` asks the last log of this list
    try:
        yield
    finally:
        _logs.remove(log)
        signal.set_wakeup_fd(previous_pipe)
        log.close()


@contextmanager
def _resent_from_finalizers() -> Iterator[None]:
    """Send a signal again if it arrives while Python runs a finalizer, such as `__del__`.

    A signal such as Ctrl-C raises KeyboardInterrupt in the code that is running at that moment. But
    Python lets no exception out of a finalizer: it calls `sys.unraisablehook`, which prints the
    exception, and continues. So the program would not notice the signal.
    """
    watch = _FinalizerWatch()
    sys.unraisablehook = watch.hook  # sends the signal once more, when the finalizer has ended
    try:
        yield
    finally:
        sys.unraisablehook = watch.previous_hook
        watch.end()  # from now on, no signal is sent


class _FinalizerWatch:
    """Sends signals again whose exceptions were raised in finalizers, until it is ended."""

    def __init__(self) -> None:
        """Begin a watch, whose `hook` replaces the present `sys.unraisablehook`."""
        self.previous_hook = sys.unraisablehook
        self._main_thread = threading.main_thread().ident
        self._lock = threading.Lock()
        """Held while a signal is sent, so that none is sent after the end."""
        self._has_ended = False

    def hook(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Send a signal again, such as Ctrl-C, if its exception was lost in a finalizer.

        Python calls this for an exception in a finalizer, which is code that runs when an object is
        freed, such as `__del__`. Nobody can catch the exception there. A signal raises an exception
        such as KeyboardInterrupt, which is no `Exception`.

        Args:
            unraisable: The exception, and where it was raised.
        """
        is_fault_of_finalizer = issubclass(unraisable.exc_type, Exception)
        number = None if is_fault_of_finalizer else received_signal()
        if number is None:
            self.previous_hook(unraisable)  # prints it
            return
        # `threading.Thread.start` would wait until the thread runs, which the finalizer must not.
        _thread.start_new_thread(self._send_later, (number,))

    def _send_later(self, number: int) -> None:
        """Send a signal to the main thread after a moment, when the finalizer should have ended.

        As long as the finalizer runs, the signal would be lost again.

        Args:
            number: Number of the signal.
        """
        time.sleep(_RESEND_SECONDS)
        with self._lock:
            if self._main_thread is not None and not self._has_ended:
                signal.pthread_kill(self._main_thread, number)

    def end(self) -> None:
        """Send no signal from now on."""
        with self._lock:
            self._has_ended = True


def received_signal() -> signal.Signals | None:
    """Return the first signal that has asked this process to end, or None.

    KeyboardInterrupt does not say which signal has raised it: SIGINT (Ctrl-C), SIGTERM (`kill`) or
    SIGHUP (the terminal was closed). Only signals since the block of `interruptible` began are
    known.
    """
    return _logs[-1].first() if _logs else None


def ignores_ending_signals() -> bool:
    """Return whether this process was told to ignore a signal that ends processes, such as SIGHUP.

    That is so if it was started by `nohup`, or in the background of a shell, by `&`.
    """
    return any(signal.getsignal(number) == signal.SIG_IGN for number in _ENDING_SIGNALS)


@contextmanager
def handlers_restored() -> Iterator[None]:
    """After the `with` block, let signals such as Ctrl-C have the same effect as before it.

    The block may call a library that changes how the process reacts to signals. Only the main
    thread can change that; in other threads, this does nothing.
    """
    if not _is_main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def signals_dropped() -> Iterator[None]:
    """Ignore signals such as Ctrl-C during a block that cleans up.

    For example, a user presses Ctrl-C twice. The first one ends the work, and the second one would
    end the cleaning up. So the block should take a limited time. Afterwards, `received_signal` says
    whether a signal has arrived.
    """
    with handlers_restored():
        drop_further_signals()
        yield


def drop_further_signals() -> None:
    """Ignore all signals that end a process, until the block of `interruptible` or
    `signals_dropped` ends.

    A signal that is ignored anyway stays so. Other threads than the main one cannot change this.
    """
    if not _is_main_thread():
        return
    for number in _ENDING_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _drop)


@contextmanager
def children_shielded() -> Iterator[None]:
    """Let processes that are started in the `with` block ignore Ctrl-C, so that this one ends them.

    If a user presses Ctrl-C, the terminal sends SIGINT to a command and to all of its children.
    Here, only the command reacts: it decides what to finish, and ends its children by SIGTERM. A
    closed terminal (SIGHUP) is treated in the same way.
    """
    # Block the two signals in this thread: they have no effect while they are blocked. Children and
    # new threads inherit that. Other threads of this process still receive the signals.
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGHUP])
    with _sigterm_ends_children():
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


@contextmanager
def _sigterm_ends_children() -> Iterator[None]:
    """Let SIGTERM end processes that are started in the `with` block, also if this one ignores it.

    Children inherit that a process ignores a signal, but not that it handles the signal by a Python
    function. So within the block, a function that does nothing handles SIGTERM.
    """
    with handlers_restored():
        ignores_sigterm = signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
        if ignores_sigterm and _is_main_thread():
            signal.signal(signal.SIGTERM, _drop)
        yield


def _is_main_thread() -> bool:
    """Return whether this is the main thread, the only one that can set handlers of signals."""
    return threading.current_thread() is threading.main_thread()


# Handlers


def _drop(number: int, frame: FrameType | None) -> None:
    """Handle a signal by doing nothing.

    The setting SIG_IGN would also ignore it. But processes that are started later would inherit
    that.

    Args:
        number: Number of the signal.
        frame: Where the program was when the signal arrived.
    """


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal by ending this process at once, with a message."""
    os.write(2, INTERRUPTED.encode() + b"\n")
    os._exit(128 + number)

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

    A command does this while it has nothing to clean up yet, such as during slow imports:

        $ nanoset build
        ^Cinterrupted: what is finished is kept; run the same command again to continue

    By default, Python would print some thirty lines about the import that was running.

    Raises:
        SystemExit: The block raised it, since the command has ended. Ctrl-C still prints no
            traceback until the process is gone.
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

    By default, `kill` (SIGTERM) and a closed terminal (SIGHUP) end a Python program on the spot,
    and only Ctrl-C (SIGINT) lets it clean up. In the block, all three let it clean up:

        with interruptible():
            try:
                build()
            except KeyboardInterrupt:
                print("interrupted by", received_signal())  # such as SIGTERM

    A signal that this process was told to ignore, as `nohup` does with SIGHUP, stays ignored.
    """
    ignored_signals = []
    with handlers_restored():
        for number in _ENDING_SIGNALS:
            handler = signal.getsignal(number)
            if handler == signal.SIG_IGN:
                # The parent process wants it ignored, as nohup does: it stays so.
                ignored_signals.append(number)
            elif handler in (signal.SIG_DFL, _exit):
                # The default, and this module's `_exit`, would end the process at once. Replace
                # them by Python's handler of Ctrl-C, which raises KeyboardInterrupt.
                signal.signal(number, signal.default_int_handler)
            # Any other handler stays, since it was set on purpose.

        # Note each signal that arrives, for `received_signal`. If one arrives while a finalizer
        # runs, such as `__del__`, Python prints its KeyboardInterrupt and goes on as if nothing had
        # happened. So send such a signal once more when the finalizer has ended.
        with _logged_signals(ignored_signals), _resent_from_finalizers():
            yield


@contextmanager
def signals_held() -> Iterator[Callable[[], None]]:
    """Hold back signals that end the process, until the `with` block is ready to handle them.

    `interruptible` lets Ctrl-C raise KeyboardInterrupt. Without `signals_held`, Ctrl-C could arrive
    after `interruptible` has begun, and before `try`. Then `clean_up` would not be called:

        with signals_held() as release, interruptible():
            try:
                release()              # a Ctrl-C since the first line raises KeyboardInterrupt here
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
        release()


@contextmanager
def _logged_signals(ignored_signals: Collection[signal.Signals]) -> Iterator[None]:
    """Log the signals that arrive in the `with` block, for `received_signal`.

    KeyboardInterrupt does not say which signal has caused it, and a handler for the signals could
    be replaced by a library. So this uses a pipe: Python can be told to write the number of each
    signal to a pipe as soon as it arrives, whatever the handlers do.

    Args:
        ignored_signals: Signals that are not logged.
    """
    log = _SignalLog(ignored_signals)
    # From now on, Python writes the number of each signal to the pipe of the log, before it calls
    # the handler of the signal, and also if a library replaces that handler.
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

    A signal raises KeyboardInterrupt in the code that is running at that moment. Usually, this ends
    the program. But Python lets no exception out of a finalizer: it prints it, and continues.

        in a function:     Ctrl-C  →  KeyboardInterrupt  →  the program cleans up and ends
        in a finalizer:    Ctrl-C  →  KeyboardInterrupt  →  printed, and the program continues

    To print it, Python calls `sys.unraisablehook`. Here, that is replaced by a function that sends
    the signal once more, when the finalizer has ended.
    """
    watch = _FinalizerWatch()
    # The hook sends the signal once more, when the finalizer has ended.
    sys.unraisablehook = watch.hook
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

        A finalizer is code that Python runs when it frees an object, such as `__del__`. Nobody can
        catch an exception that it raises. So Python passes the exception to `sys.unraisablehook`,
        which is this method, and continues as if nothing had happened. There are two cases:

            ZeroDivisionError, …    a fault of the finalizer      it is printed, as usual
            KeyboardInterrupt       Ctrl-C was pressed meanwhile  the signal of Ctrl-C is sent again

        Args:
            unraisable: The exception, and where it was raised.
        """
        # A fault of the finalizer itself is an `Exception`. KeyboardInterrupt is not one, and
        # neither is the exception that Dagster, a scheduler, raises if it receives a signal.
        is_fault = issubclass(unraisable.exc_type, Exception)
        number = None if is_fault else received_signal()
        if number is None:
            self.previous_hook(unraisable)
            return
        # Send the signal from another thread, when this finalizer will have ended: otherwise, the
        # finalizer would swallow it once more. `threading.Thread.start` waits until the new thread
        # runs, so that the finalizer might still be running when the signal arrives.
        _thread.start_new_thread(self._send_later, (number,))

    def _send_later(self, number: int) -> None:
        """Send a signal to the main thread after a moment, when the finalizer should have ended.

        Args:
            number: Number of the signal.
        """
        time.sleep(_RESEND_SECONDS)  # until the finalizer has ended, too
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

    If a user presses Ctrl-C, the terminal sends SIGINT to a command and to all of its child
    processes. If each of them reacted, they would end in any order, with a traceback each. Instead,
    only the command itself reacts. It decides what to finish, and ends its children by SIGTERM:

        signal                      children of this block    since they inherit from this process
        SIGINT (Ctrl-C)             do not receive it         that it is blocked
        SIGHUP (closed terminal)    do not receive it         that it is blocked
        SIGTERM (kill)              end                       that it is not ignored

    Children that are started by threads that begin in the block are shielded, too.
    """
    # Block the two signals in this thread. Children and new threads inherit that.
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGHUP])
    with handlers_restored():
        # If this process ignores SIGTERM, its children inherit that, and could not be ended. But
        # they inherit only SIG_IGN, and no handler that is a function. So for the block, replace
        # SIG_IGN by a function that does nothing.
        if _is_main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
            signal.signal(signal.SIGTERM, _drop)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


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

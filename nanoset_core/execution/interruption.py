"""Ctrl-C, SIGTERM and SIGHUP end a command in the same orderly way, whatever handler is in place
when they come.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

INTERRUPTED = "interrupted: what is finished is kept; run the same command again to go on"
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PAUSE_SECONDS = 0.02
_received: list[signal.Signals] = []
_ignored: set[signal.Signals] = set()
"""Those that were ignored when `interruptible` began."""
_reader: list[int] = []
"""Where Python writes the number of each signal that comes, whatever its handler does with it; at
most one.
"""


@contextmanager
def exit_on_sigint() -> Iterator[None]:
    """End this process without a traceback on Ctrl-C within this block, except where it is
    `interruptible`.
    """
    former = signal.getsignal(signal.SIGINT)
    if former == signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)
    try:
        yield
    except SystemExit:  # a Ctrl-C on the way out gives no traceback either
        raise
    except BaseException:
        signal.signal(signal.SIGINT, former)
        raise
    signal.signal(signal.SIGINT, former)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise KeyboardInterrupt within this block, as Ctrl-C does, and note
    which of them came.

    A signal that the parent process has set to be ignored, as nohup and shells do for background
    jobs, stays ignored. One that comes within a finaliser, where Python prints exceptions instead
    of raising them, is sent again.
    """
    read, write = os.pipe()
    for descriptor in (read, write):
        os.set_blocking(descriptor, False)
    former = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in former.items():
        if handler in (signal.SIG_DFL, _exit):
            signal.signal(number, signal.default_int_handler)
    earlier = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    _received.clear()
    _ignored.clear()
    _ignored.update(number for number, handler in former.items() if handler == signal.SIG_IGN)
    _reader.append(read)
    try:
        with _sent_again():
            yield
    finally:
        _reader.remove(read)
        if not _reader:
            _received.clear()  # what this process does next was not interrupted
        signal.set_wakeup_fd(earlier)
        for number, handler in former.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)


@contextmanager
def _sent_again() -> Iterator[None]:
    """Send a signal again whose KeyboardInterrupt, or what Dagster raises instead, a finaliser only
    prints.
    """
    main, lock, is_over = threading.main_thread().ident, threading.Lock(), threading.Event()
    former = sys.unraisablehook

    def send(number: int) -> None:
        time.sleep(_PAUSE_SECONDS)
        with lock:
            if main is not None and not is_over.is_set():
                signal.pthread_kill(main, number)

    def hook(ignored: sys.UnraisableHookArgs) -> None:
        number = None if issubclass(ignored.exc_type, Exception) else received_signal()
        if number is None:
            former(ignored)
            return
        # Not by `threading`, which waits for the thread: the signal would come while this is still
        # the finaliser.
        _thread.start_new_thread(send, (number,))

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = former
        with lock:
            is_over.set()


def received_signal() -> signal.Signals | None:
    """Return the first ending signal that came since `interruptible` began; None where none did."""
    for reader in _reader:
        try:
            came = [
                signal.Signals(number) for number in os.read(reader, 1 << 16) if number in _ENDING
            ]
            _received.extend(number for number in came if number not in _ignored)
        except BlockingIOError:
            break
    return _received[0] if _received else None


def are_ignored() -> bool:
    """Return whether this process ignores an ending signal, as one does that nohup or a shell's `&`
    has started.
    """
    return any(signal.getsignal(number) == signal.SIG_IGN for number in _ENDING)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Restore the handlers of ending signals after a block that changes them; no thread but the
    main one can.
    """
    kept = {number: signal.getsignal(number) for number in _ENDING if _in_main_thread()}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let no signal end this block, which cleans up and is bounded in time; `received_signal` tells
    of it after.
    """
    with handlers_kept():
        disturb_no_more()
        yield


def disturb_no_more() -> None:
    """Let no signal raise anything until the end of the block of `interruptible` or `undisturbed`."""
    for number in _ENDING:
        if _in_main_thread() and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _drop)


@contextmanager
def ignore_sigint() -> Iterator[None]:
    """Start processes in this block that ignore Ctrl-C and hang-ups, which a terminal sends to all;
    also by threads that begin in it.

    Their owner ends them by SIGTERM, which reaches them even where the owner itself ignores it.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGHUP])
    with handlers_kept():
        if _in_main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:
            signal.signal(signal.SIGTERM, _drop)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _drop(number: int, frame: FrameType | None) -> None:
    """Ignore a signal; unlike SIG_IGN, children do not inherit this."""


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, INTERRUPTED.encode() + b"\n")
    os._exit(128 + number)

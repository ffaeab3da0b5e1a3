"""Ctrl-C and SIGTERM: both end a command in the same orderly way, whatever handler is in place when they come."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

INTERRUPTED = "interrupted: what is finished is kept; run the same command again to go on"
_ENDING = (signal.SIGINT, signal.SIGTERM)
_PAUSE_SECONDS = 0.02
_received: list[signal.Signals] = []
_reader: list[int] = []
"""Where Python writes the number of each signal that comes, whatever its handler does with it; at most one."""


@contextmanager
def exit_on_sigint() -> Iterator[None]:
    """End this process without a traceback on Ctrl-C within this block, except where it is `interruptible`."""
    former = signal.getsignal(signal.SIGINT)
    if former == signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt within this block, as Ctrl-C does, and note which of them came.

    A signal that the parent process has set to be ignored, as nohup and shells do for background jobs, stays ignored.
    One that comes within a finaliser, where Python prints exceptions instead of raising them, is sent again.
    """
    read, write = os.pipe()
    for descriptor in (read, write):
        os.set_blocking(descriptor, False)
    former = {number: signal.getsignal(number) for number in _ENDING}
    if former[signal.SIGTERM] == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if former[signal.SIGINT] == _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    earlier = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    _received.clear()
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
    """Send a signal again whose KeyboardInterrupt a finaliser or a weak reference's callback only prints."""
    main = threading.main_thread()
    timers: list[threading.Timer] = []
    former = sys.unraisablehook

    def hook(ignored: sys.UnraisableHookArgs) -> None:
        if ignored.exc_type is not KeyboardInterrupt or main.ident is None:
            former(ignored)
            return
        number = received_signal() or signal.SIGINT
        timers.append(threading.Timer(_PAUSE_SECONDS, signal.pthread_kill, (main.ident, number)))
        timers[-1].start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = former
        for timer in timers:
            timer.cancel()
            timer.join()


def received_signal() -> signal.Signals | None:
    """Return the first ending signal that came since `interruptible` began; None where none did."""
    for reader in _reader:
        try:
            _received.extend(signal.Signals(number) for number in os.read(reader, 1 << 16) if number in _ENDING)
        except BlockingIOError:
            break
    return _received[0] if _received else None


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Restore the handlers of both signals after a block that changes them; signals that were ignored stay so."""
    if threading.current_thread() is not threading.main_thread():
        yield  # no handler can be changed there
        return
    kept = {number: signal.getsignal(number) for number in _ENDING}
    ignored = [number for number, handler in kept.items() if handler == signal.SIG_IGN]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ignored)
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def ignore_sigint() -> Iterator[None]:
    """Start processes in this block that ignore Ctrl-C, which a terminal sends to all; their owner ends them.

    SIGTERM, by which their owner ends them, reaches them even where the owner itself blocks it.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    handler = None
    if signal.SIGTERM in mask:  # see handlers_kept
        if threading.current_thread() is threading.main_thread():
            handler = signal.signal(signal.SIGTERM, _drop)  # a blocked one is delivered at once
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _drop(number: int, frame: FrameType | None) -> None:
    """Ignore a signal; unlike SIG_IGN, children do not inherit this."""


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, INTERRUPTED.encode() + b"\n")
    os._exit(128 + number)

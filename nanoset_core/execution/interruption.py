"""Ctrl-C and SIGTERM: both end a command in the same orderly way, whoever's handler is in place when they come."""

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
_PAUSE = 0.02
"""Seconds after which a lost signal comes again: any callback has ended by then, or loses it once more."""
_heard: list[signal.Signals] = []
_reader: list[int] = []
"""Where Python writes the number of each signal that comes, whatever its handler makes of it; at most one."""


@contextmanager
def exit_on_sigint() -> Iterator[None]:
    """End this process without a traceback on Ctrl-C in this block, but for what is `interruptible` in it."""
    former = signal.getsignal(signal.SIGINT)
    if former == signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt within this block, as Ctrl-C does, and note which of them came.

    A signal that the parent process has set to be ignored, as nohup and shells do for background jobs, stays ignored.
    One that comes while Python runs a callback out of which no exception leads comes again a moment later.
    """
    read, write = os.pipe()
    for descriptor in (read, write):
        os.set_blocking(descriptor, False)
    former = {number: signal.getsignal(number) for number in _ENDING}
    if former[signal.SIGTERM] == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _raise)
    if former[signal.SIGINT] == _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    earlier = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    _heard.clear()
    _reader.append(read)
    try:
        with _none_lost():
            yield
    finally:
        _reader.remove(read)
        if not _reader:
            _heard.clear()  # what this process does next was not interrupted
        signal.set_wakeup_fd(earlier)
        for number, handler in former.items():
            signal.signal(number, handler)
        os.close(read)
        os.close(write)


@contextmanager
def _none_lost() -> Iterator[None]:
    """Send a signal again whose KeyboardInterrupt a finaliser or a weak reference's callback would only print."""
    main = threading.main_thread()
    again: list[threading.Timer] = []
    former = sys.unraisablehook

    def hook(ignored: sys.UnraisableHookArgs) -> None:
        if ignored.exc_type is not KeyboardInterrupt or main.ident is None:
            former(ignored)
            return
        timer = threading.Timer(_PAUSE, signal.pthread_kill, (main.ident, received_signal() or signal.SIGINT))
        again.append(timer)
        timer.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = former
        for timer in again:
            timer.cancel()
            timer.join()


def received_signal() -> signal.Signals | None:
    """The first signal to end that came since `interruptible` began; None where none did."""
    for reader in _reader:
        try:
            _heard.extend(signal.Signals(number) for number in os.read(reader, 1 << 16) if number in _ENDING)
        except BlockingIOError:
            break
    return _heard[0] if _heard else None


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Put the handlers of both signals back after a block that changes them; what is ignored waits, and is dropped."""
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
    """Start processes in this block that no Ctrl-C reaches: a terminal sends it to all, and it is their owner's.

    SIGTERM reaches them, by which their owner ends them, also where the owner keeps it from itself.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    handler = None
    if signal.SIGTERM in mask:  # see handlers_kept
        if threading.current_thread() is threading.main_thread():
            handler = signal.signal(signal.SIGTERM, _drop)  # one that waits comes as soon as it may
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _drop(number: int, frame: FrameType | None) -> None:
    """Stand for SIG_IGN, which children would inherit."""


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    os.write(2, INTERRUPTED.encode() + b"\n")
    os._exit(128 + number)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt

"""Ctrl-C (SIGINT) and SIGTERM: at any moment they end a command in order, without a traceback.

Imports little: an interrupt before `install_handlers` is not handled.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
RETRY_S = 0.02  # until an interrupt that was lost in a callback is sent again
# until a command that did not end is interrupted again, and then ended: a library may have caught the interrupt
AGAIN_S, END_S = 3.0, 8.0

_received = 0  # number of the signal that stopped the command
_is_lost = False  # whether the interrupt was raised where Python cannot pass it on
is_verbose = False  # whether errors that end no command, such as those in destructors, print a traceback
_exit_code: int | None = None


def install_handlers() -> None:
    """Let the first signal raise KeyboardInterrupt, and the second one end the process."""
    global _received, _is_lost
    _received, _is_lost = 0, False
    _set_handlers(_interrupt)
    atexit.register(leave)  # registered first, runs last
    sys.unraisablehook = _handle_unraisable
    sys.excepthook = _handle_printed
    threading.excepthook = lambda arguments: threading.__excepthook__(arguments) if is_verbose else None


def is_stopped() -> bool:
    """Return True after a signal: whatever is raised then is its consequence."""
    return _received != 0


def end(code: int) -> int:
    """Finish a command, and return its exit code; from here on, a signal ends the process at once.

    Args:
        code: the exit code if no signal was received.
    """
    global _exit_code
    _set_handlers(lambda number, frame: os._exit(128 + number))
    if is_stopped():
        code = 128 + _received
    if code in [128 + number for number in SIGNALS]:
        with contextlib.suppress(OSError):
            print("floc: stopped", file=sys.stderr)
    _exit_code = max(code, *(_flush(stream) for stream in (sys.stdout, sys.stderr)))
    return _exit_code


def leave() -> None:
    """End the process. Python would unload torch and others for a second, where a signal has no handler any more."""
    if _exit_code is not None:
        _flush(sys.stdout)
        _flush(sys.stderr)
        os._exit(_exit_code)


def _flush(stream: Any) -> int:
    """Flush a stream and return 0; if it cannot be written, return 1 and let Python's last flush succeed.

    A stream that was closed before Python started, as by `>&-`, is None.
    """
    if stream is None:
        return 0
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 1
    return 0


@contextlib.contextmanager
def catch_stop() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns True after Ctrl-C or SIGTERM, so that work in progress ends in order.

    A second signal interrupts the work.
    """
    stop = threading.Event()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def request_stop(number: int, frame: object) -> None:
        stop.set()
        restore()

    for number in handlers:
        signal.signal(number, request_stop)
    try:
        yield stop.is_set
    finally:
        restore()


def _set_handlers(handler: Callable[..., None]) -> None:
    if threading.current_thread() is threading.main_thread():  # Python allows no other
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as a shell sets it for a job in the background
                signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> None:
    global _received, _is_lost
    if is_stopped() and not _is_lost:
        os._exit(128 + number)
    if not is_stopped():
        _start_timer(AGAIN_S, _interrupt_again)
        _start_timer(END_S, _end_now)
    _received, _is_lost = number, False
    raise KeyboardInterrupt


def _start_timer(seconds: float, function: Callable[[], None]) -> None:
    """Call a function later, unless the command has ended by then."""
    timer = threading.Timer(seconds, lambda: function() if _exit_code is None and is_stopped() else None)
    timer.daemon = True
    timer.start()


def _interrupt_again() -> None:
    global _is_lost
    _is_lost = True
    os.kill(os.getpid(), _received)


def _end_now() -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"floc: stopped\n")
    os._exit(128 + _received)


def _handle_unraisable(unraisable: Any) -> None:
    """Send an interrupt again that Python could not raise, as in a destructor; hide other errors there."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        _start_timer(RETRY_S, _interrupt_again)
    elif is_verbose:
        sys.__unraisablehook__(unraisable)


def _handle_printed(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Send an interrupt again that compiled code would only print."""
    if issubclass(kind, KeyboardInterrupt) and is_stopped():
        _start_timer(RETRY_S, _interrupt_again)
    else:
        sys.__excepthook__(kind, error, trace)

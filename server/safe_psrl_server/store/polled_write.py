"""A write that is waited for awake.

A thread that sleeps until the disk is done, once for the write and once for the flush, wakes on a processor that has slept,
too: on a virtual machine that is a quarter of the time. Linux writes asynchronously to files that are opened past its cache
(`O_DIRECT`); whoever has nothing else to do can ask until it is done, and let other threads run in between.
"""

import ctypes
import os
import platform
import sys
import time
from collections.abc import Callable
from errno import EAGAIN, EINTR, EINVAL, ENOSYS
from struct import Struct
from typing import Any, Final

NUMBERS: Final = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}  # of io_setup, io_destroy, io_submit, io_getevents
REQUEST: Final = Struct("<QIIHhIQQqQII")  # struct iocb of linux/aio_abi.h
EVENT: Final = Struct("<QQqq")  # struct io_event: data, request, result, second result
PWRITE: Final = 1
NOT_TAKEN: Final = {EAGAIN, EINVAL, ENOSYS}  # files and systems that have no such writes, or not now
MOST_POLLING: Final = 0.002  # seconds: a disk that takes longer is waited for asleep


_spare: list[ctypes.c_ulong] = []  # contexts that nobody uses: the system takes 30 ms to destroy one


class PolledWriter:
    """One write at a time. Where the system has none such, `open` does nothing."""

    def __init__(self) -> None:
        self._context: ctypes.c_ulong | None = None
        self._is_writing = False

    def open(self) -> None:
        if sys.platform != "linux" or platform.machine() not in NUMBERS:
            return
        self._setup, self._destroy, self._submit, self._getevents = NUMBERS[platform.machine()]
        self._call: Any = ctypes.CDLL(None, use_errno=True).syscall
        self._call.restype = ctypes.c_long
        self._request = ctypes.create_string_buffer(REQUEST.size)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._event = ctypes.create_string_buffer(EVENT.size)
        self._no_time = ctypes.create_string_buffer(16)
        try:
            self._context = _spare.pop()
        except IndexError:
            context = ctypes.c_ulong(0)
            if self._call(self._setup, 1, ctypes.byref(context)) == 0:  # forbidden in some containers
                self._context = context

    @property
    def is_open(self) -> bool:
        return self._context is not None

    def write(self, file: int, address: int, size: int, place: int, meanwhile: Callable[[], None]) -> int:
        """How many of the `size` bytes at `address` were written to `place`; 0 if it was not even begun.

        `meanwhile` is done while the disk writes, if it does. Raises OSError as `os.pwrite` does.
        """
        REQUEST.pack_into(self._request, 0, 0, 0, 0, PWRITE, 0, file, address, size, place, 0, 0, 0)
        if self._call(self._submit, self._context, 1, self._requests) < 0:
            if ctypes.get_errno() in NOT_TAKEN:
                return 0
            raise _failure(ctypes.get_errno())
        self._is_writing = True
        try:
            meanwhile()
        finally:  # the memory belongs to the disk until then
            self._wait()
            self._is_writing = False
        result: int = EVENT.unpack_from(self._event)[2]
        if result < 0:
            raise _failure(-result)
        return result

    def close(self) -> None:
        if self._context is None:
            return
        if self._is_writing:  # nobody knows what became of it: that must not be told to the next one
            self._call(self._destroy, self._context)
        else:
            _spare.append(self._context)
        self._context = None

    def _wait(self) -> None:
        latest = time.perf_counter() + MOST_POLLING
        while not self._is_done(0, self._no_time):
            os.sched_yield()
            if time.perf_counter() > latest:
                while not self._is_done(1, None):
                    pass
                return

    def _is_done(self, at_least: int, wait: Any) -> bool:
        found: int = self._call(self._getevents, self._context, at_least, 1, self._event, wait)
        if found < 0 and ctypes.get_errno() != EINTR:
            raise _failure(ctypes.get_errno())
        return found == 1


def _failure(number: int) -> OSError:
    return OSError(number, os.strerror(number))

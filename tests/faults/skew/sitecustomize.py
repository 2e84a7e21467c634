"""Give this Python process a wrong wall clock. On the path of a worker whose clock a test sets wrong.

Only what tells the time of day is shifted: durations are measured on other clocks, and a wrong clock leaves
those alone.
"""

import datetime
import os
import time

OFFSET_SECONDS = float(os.environ["PGQUEUE_TEST_CLOCK_OFFSET"])

_time, _time_ns, _datetime = time.time, time.time_ns, datetime.datetime


class _AnyDatetime(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _datetime)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _datetime)


class ShiftedDatetime(_datetime, metaclass=_AnyDatetime):
    __slots__ = ()  # Extension modules check the size.

    @classmethod
    def now(cls, tz=None):
        return _datetime.now(tz) + datetime.timedelta(seconds=OFFSET_SECONDS)

    @classmethod
    def utcnow(cls):
        return _datetime.now(datetime.UTC).replace(tzinfo=None) + datetime.timedelta(seconds=OFFSET_SECONDS)

    @classmethod
    def today(cls):
        return cls.now()


time.time = lambda: _time() + OFFSET_SECONDS
time.time_ns = lambda: _time_ns() + int(OFFSET_SECONDS * 1e9)
datetime.datetime = ShiftedDatetime

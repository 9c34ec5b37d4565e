"""Timestamps in log lines, as seconds since the epoch: the usual forms, whatever writes them."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

__all__ = ["MAX_STAMP_CHARS", "Stamps"]

# A stamp stands near the beginning of its line, after prefixes.
MAX_STAMP_CHARS = 160
DAY_SECONDS = 86_400.0
# Local time without a zone, taken as UTC, runs ahead of it by up to 14 hours; a stamp beyond that comes from the future.
FUTURE_ALLOWANCE_SECONDS = 15 * 3600.0

MONTHS = {month: number for number, month in enumerate(calendar.month_abbr) if month}
TIME_OF_DAY = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"

ISO = re.compile(
    r"(?<!\d)(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T \-]"
    + TIME_OF_DAY
    + r"(?:[.,](?P<fraction>\d{1,9}))?\s?(?P<zone>Z|UTC|[+-]\d\d:?\d\d)?"
)
# glog writes `E0817 17:40:34.5`; torch's C++ side `[E817 17:40:34.5`: month * 100 + day, not padded.
GLOG = re.compile(
    r"(?<![A-Za-z0-9])[IWEFVDC](?P<month>\d{1,2}?)(?P<day>\d\d) " + TIME_OF_DAY + r"(?:\.(?P<fraction>\d{1,9}))?(?= )"
)
MONTH_NAME = re.compile(
    r"\b(?P<name>[A-Z][a-z]{2}) {1,2}(?P<day>\d{1,2}) (?:(?P<year>\d{4}) )?"
    + TIME_OF_DAY
    + r"(?:[.,](?P<fraction>\d{1,9}))?(?: (?P<year_after>\d{4})\b)?"
)
EPOCH = re.compile(r"(?:^|[\s=\[\"':(])(?P<epoch>1[0-9]{9}(?:[.,]\d{1,9})?|1[0-9]{12})(?=$|[\s,;\]\"':)}])")
# A time of day alone, at the beginning of a line or right after a prefix.
CLOCK = re.compile(r"(?:^|[\]>:] ?|\[)" + TIME_OF_DAY + r"(?:[.,](?P<fraction>\d{1,9}))?(?=[\s\],|:-]|$)")
TIME_OF_DAY_ANYWHERE = re.compile(r"\d\d:\d\d:\d\d")


def zone_of(text: str | None) -> timezone:
    if not text or text in ("Z", "UTC"):
        return UTC
    sign = -1 if text[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(text[1:3]), minutes=int(text[-2:])))


def fraction_of(digits: str | None) -> float:
    return float(f"0.{digits}") if digits else 0.0


class Stamps:
    """Reads the stamps of one source, line after line. `clock` gives the present, in seconds since the epoch.

    A stamp without a year gets the year that brings it nearest to the stamp before it, or, as the first one, the latest year that
    does not put it in the future; one without a zone is taken as UTC; a time of day alone gets the day that brings it nearest to
    the stamp before it, so that it runs on over midnight. A stamp in the future is none: the clock or the text that made it is
    wrong. Kernel seconds count from a boot that nobody names, so they are no stamp either.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._latest = clock() + FUTURE_ALLOWANCE_SECONDS
        self._year = datetime.fromtimestamp(self._latest, UTC).year
        self._last: float | None = None

    def read(self, text: str) -> float | None:
        """The first stamp near the beginning of `text`; None where there is none or it names no moment that can be."""
        time = self._read(text[:MAX_STAMP_CHARS])
        if time is None or not 0 <= time <= self._latest:
            return None
        self._last = time
        return time

    def _read(self, head: str) -> float | None:
        if TIME_OF_DAY_ANYWHERE.search(head):
            for pattern in (ISO, GLOG, MONTH_NAME):
                match = pattern.search(head)
                if match:
                    try:
                        return self._calendar(match)
                    except (ValueError, OverflowError, KeyError):
                        continue
            match = CLOCK.search(head)
            if match:
                return self._clock(match)
        match = EPOCH.search(head)
        if match:
            digits = match["epoch"].replace(",", ".")
            return float(digits) / (1000 if len(digits) == 13 and "." not in digits else 1)
        return None

    def _calendar(self, match: re.Match[str]) -> float:
        fields = match.groupdict()
        month = int(fields["month"]) if "month" in fields else MONTHS[fields["name"]]
        day = int(fields["day"])
        year_text = fields.get("year") or fields.get("year_after")
        year, leap_day = int(year_text) if year_text else self._year, (month, day) == (2, 29)
        if not year_text and leap_day:
            year -= year % 4
        moment = datetime(
            year,
            month,
            day,
            int(fields["hour"]),
            int(fields["minute"]),
            min(int(fields["second"]), 59),
            tzinfo=zone_of(fields.get("zone")),
        )
        if not year_text and not leap_day and (last := self._last) is not None:
            near = datetime.fromtimestamp(last, UTC).year
            moment = min((moment.replace(year=near + by) for by in (0, -1, 1)), key=lambda one: abs(one.timestamp() - last))
        if not year_text and moment.timestamp() > self._latest:
            moment = moment.replace(year=moment.year - (4 if leap_day else 1))
        return moment.timestamp() + fraction_of(fields["fraction"])

    def _clock(self, match: re.Match[str]) -> float | None:
        hour, minute, second = int(match["hour"]), int(match["minute"]), int(match["second"])
        if hour > 23 or minute > 59 or second > 60:
            return None
        of_day = hour * 3600.0 + minute * 60 + second + fraction_of(match["fraction"])
        anchor = self._latest - FUTURE_ALLOWANCE_SECONDS if self._last is None else self._last
        time = anchor - anchor % DAY_SECONDS + of_day
        if self._last is None:
            return time if time <= anchor else time - DAY_SECONDS
        # Lines are not read strictly in order: the nearest day is meant.
        if time < anchor - DAY_SECONDS / 2:
            return time + DAY_SECONDS
        return time - DAY_SECONDS if time > anchor + DAY_SECONDS / 2 else time

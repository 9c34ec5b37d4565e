"""Timestamps in log lines, as seconds since the epoch: the usual forms, whatever writes them."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

__all__ = ["MAX_STAMP_BYTES", "Stamps"]

# A stamp stands near the beginning of its line, after prefixes.
MAX_STAMP_BYTES = 256
DAY = 86_400.0
# A clock may run ahead of ours by this much before its stamps count as coming from the future.
FUTURE_ALLOWANCE_SECONDS = 2 * DAY

MONTHS = {month: number for number, month in enumerate(calendar.month_abbr) if month}

ISO = re.compile(
    r"(?<!\d)(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T \-](?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
    r"(?:[.,](?P<fraction>\d{1,9}))?\s?(?P<zone>Z|UTC|[+-]\d\d:?\d\d)?"
)
MONTH_FIRST = re.compile(
    r"(?:\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?\b(?P<name>[A-Z][a-z]{2}) {1,2}(?P<day>\d{1,2}) (?:(?P<year>\d{4}) )?"
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?(?: (?P<year_after>\d{4})\b)?"
)
GLOG = re.compile(
    r"(?<![A-Za-z0-9])[IWEFVDC](?P<month>\d\d)(?P<day>\d\d) "
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)\.(?P<fraction>\d{1,9})"
)
# torch writes month and day without padding of the month: E817 is 17 August, E1129 29 November.
TORCH = re.compile(
    r"\[[IWEFCV](?P<month>\d{1,2}?)(?P<day>\d\d) (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d{1,9}))? "
)
EPOCH = re.compile(r"(?:^|[\s=\[\"':(])(?P<epoch>1[0-9]{9}(?:[.,]\d{1,9})?|1[0-9]{12})(?=$|[\s,;\]\"':)}])")
KERNEL = re.compile(r"^\[ *(?P<seconds>\d{1,9}\.\d{6})\]")
CLOCK = re.compile(r"(?:^|[\s\[])(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?(?=[\s\]:]|$)")


def fraction(match: re.Match[str]) -> float:
    digits = match["fraction"]
    return float(f"0.{digits}") if digits else 0.0


def zone_of(text: str | None) -> timezone:
    if not text or text in ("Z", "UTC"):
        return UTC
    sign = -1 if text[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(text[1:3]), minutes=int(text[-2:])))


class Stamps:
    """Reads the stamp of one line after another. `clock` gives the present, in seconds since the epoch.

    Stamps without a year get the latest year that does not put them in the future; stamps without a zone are taken as UTC.
    Kernel seconds count from a boot that nobody named: they are given relative to zero, so they order lines of one source only.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._latest = clock() + FUTURE_ALLOWANCE_SECONDS
        self._year = datetime.fromtimestamp(self._latest, UTC).year

    def is_future(self, time: float) -> bool:
        return time > self._latest

    def read(self, text: str) -> float | None:
        """The first stamp near the beginning of `text`; None where there is none or it names no real moment."""
        head = text[:MAX_STAMP_BYTES]
        for pattern in (ISO, TORCH, GLOG, MONTH_FIRST):
            match = pattern.search(head)
            if match:
                try:
                    return self._calendar(match)
                except (ValueError, OverflowError):
                    continue
        match = EPOCH.search(head)
        if match:
            digits = match["epoch"].replace(",", ".")
            return float(digits) / (1000 if len(digits) == 13 and "." not in digits else 1)
        return None

    def _calendar(self, match: re.Match[str]) -> float:
        fields = match.groupdict()
        month = int(fields["month"]) if "month" in fields else MONTHS[fields["name"]]
        year_text = fields.get("year") or fields.get("year_after")
        year = int(year_text) if year_text else self._year
        if not year_text and (month, int(fields["day"])) == (2, 29):
            year -= year % 4
        moment = datetime(
            year,
            month,
            int(fields["day"]),
            int(fields["hour"]),
            int(fields["minute"]),
            min(int(fields["second"]), 59),
            tzinfo=zone_of(fields.get("zone")),
        )
        if not year_text and moment.timestamp() > self._latest:
            moment = moment.replace(year=year - (4 if (month, moment.day) == (2, 29) else 1))
        return moment.timestamp() + fraction(match)

"""Codes of the monitor's alarms."""

from trueup.types.codes.base import Code


class MonitorCode(Code):
    """What a rule found, and what to do about it; both name the rule."""

    ALARM = "monitor.alarm"
    ADVICE = "monitor.advice"

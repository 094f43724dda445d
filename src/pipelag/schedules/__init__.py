"""Pipeline schedules, the staleness derived from them, and the check that a schedule can be executed."""

from pipelag.schedules.actions import SUCH_AS, Action, Schedule
from pipelag.schedules.check import check
from pipelag.schedules.delays import Delays, delays, lagged, steady_delays
from pipelag.schedules.library import SCHEDULES, register_schedule, schedule

__all__ = [
    "SCHEDULES",
    "SUCH_AS",
    "Action",
    "Delays",
    "Schedule",
    "check",
    "delays",
    "lagged",
    "register_schedule",
    "schedule",
    "steady_delays",
]

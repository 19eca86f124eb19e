"""What can go wrong, by what it means for a verdict.

Every message names the thing, the cause and the next step.
"""


class JoulesError(Exception):
    """Base of all errors this package raises on purpose."""


class UsageError(JoulesError):
    """Something a person wrote (a suite, an option, a prediction) cannot be used as it is."""


class EngineError(JoulesError):
    """The engine did not start, did not run as configured, or failed a request."""


class MeterError(JoulesError):
    """A power source cannot be used here or stopped answering.

    Attributes:
        next_step: what the person can do about it, or an empty string.
    """

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(f"{message}; {next_step}" if next_step else message)
        self.next_step = next_step


class MeterAbsent(MeterError):
    """This machine has no such source, or it is read only when asked for: nothing is wrong."""


class MeterFrozen(MeterError):
    """A power source answers, but what it reads does not follow the chip."""


class Busy(JoulesError):
    """Another measurement holds this machine."""


class Unmeasured(JoulesError):
    """There is no meter, model or control here that the suite needs: the prediction is skipped."""


class Void(JoulesError):
    """A number the prediction read is not valid: the prediction errors, neither held nor refuted."""

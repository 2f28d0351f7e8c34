from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labassist.machine import throttle
from labassist.machine.throttle import ThrottleTime


def test_every_bit_that_the_bindings_know_has_a_name() -> None:
    import pynvml

    unnamed = [name for name in throttle.names(pynvml.nvmlClocksThrottleReasonAll) if name.startswith("0x")]
    assert unnamed == []


@pytest.mark.parametrize(
    ("constant", "name", "severity"),
    [
        ("nvmlClocksEventReasonGpuIdle", "idle", "neutral"),
        ("nvmlClocksEventReasonSwPowerCap", "SW power cap", "neutral"),
        ("nvmlClocksEventReasonSwThermalSlowdown", "SW thermal", "warn"),
        ("nvmlClocksEventReasonHwThermalSlowdown", "HW thermal", "alarm"),
        ("nvmlClocksEventReasonHwSlowdown", "HW slowdown", "alarm"),
        ("nvmlClocksEventReasonHwPowerBrakeSlowdown", "power brake", "alarm"),
    ],
)
def test_names_and_severities_follow_nvml(constant: str, name: str, severity: str) -> None:
    import pynvml

    assert throttle.names(getattr(pynvml, constant)) == [name]
    assert throttle.severity(name) == severity
    assert throttle.meaning(name)


@given(st.integers(min_value=0, max_value=2**64 - 1))
def test_names_lose_no_bit(bits: int) -> None:
    by_name = {reason.name: reason.bit for reason in throttle.REASONS}
    back = sum(int(name, 16) if name.startswith("0x") else by_name[name] for name in throttle.names(bits))
    assert back == bits


def test_unknown_bits_are_shown_in_hex_and_raise_no_alarm() -> None:
    assert throttle.names(0x4 | 0x8000 | 0x10000) == ["SW power cap", "0x18000"]
    assert throttle.worst(throttle.names(0x4 | 0x8000)) == "neutral"


def test_worst_takes_the_highest() -> None:
    assert throttle.worst([]) == "neutral"
    assert throttle.worst(["SW power cap", "SW thermal"]) == "warn"
    assert throttle.worst(["HW thermal", "SW thermal", "idle"]) == "alarm"


def test_time_is_accumulated_not_a_snapshot() -> None:
    spent = ThrottleTime()
    for second in range(101):
        spent.add(float(second), 0x4 | (0x40 if second in (50, 51, 52) else 0))
    spent.add(101.0, 0x1)
    assert spent.share("HW thermal") == pytest.approx(3 / 101)
    assert spent.share("SW power cap") == pytest.approx(100 / 101)
    assert spent.words() == "HW thermal 3%, SW power cap 99% of the time"


def test_silence_and_unreadable_samples_are_not_counted() -> None:
    spent = ThrottleTime()
    spent.add(0.0, 0x4)
    spent.add(3600.0, 0x4)
    assert spent.total == 5.0
    spent.add(3601.0, None)
    assert spent.total == 5.0
    spent.add(3500.0, 0x4)  # the clock was set back
    assert spent.total == 5.0
    assert ThrottleTime().words() == "none"

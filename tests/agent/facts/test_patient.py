"""A driver that hangs: nothing waits for it, it is asked once, and its last word grows old."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from roost.agent.facts.gpu_sources import Sources
from roost.agent.facts.gpus import Reader
from roost.agent.facts.patient import Answer, Patient
from roost.agent.facts.processes import Ours
from roost.testing.fake_nvml import FakeMachine, FakeNvml, eight_h100


class Driver:
    """Answers at once, or when it is let."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.free.set()
        self.asked = 0
        self.now = 0.0

    def __call__(self) -> int:
        self.asked += 1
        self.free.wait()
        return self.asked

    def clock(self) -> float:
        return self.now


def test_the_last_answer_holds_while_the_next_is_late_and_then_no_more() -> None:
    driver = Driver()
    patient = Patient(driver, within_s=30, forget_s=60, clock=driver.clock)
    assert patient.look() == Answer(said=1, silent_s=None)
    driver.free.clear()
    patient = _impatient(patient)
    assert patient.look() == Answer(said=1, silent_s=0)
    driver.now = 59
    assert patient.look() == Answer(said=1, silent_s=59)
    driver.now = 61
    assert patient.look() == Answer(said=None, silent_s=61)
    assert driver.asked == 2
    driver.free.set()
    patient._within = 30
    assert patient.look() == Answer(said=2, silent_s=None)
    assert patient.look() == Answer(said=3, silent_s=None)


def _impatient(patient: Patient[int]) -> Patient[int]:
    patient._within = 0.01
    return patient


def test_what_asking_raises_is_raised_to_who_looks_and_the_next_look_asks_again() -> None:
    answers: Iterator[int | Exception] = iter([ValueError("no"), 5])

    def ask() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    patient = Patient(ask, within_s=30, forget_s=60)
    with pytest.raises(ValueError, match="no"):
        patient.look()
    assert patient.look().said == 5


def test_a_hanging_library_leaves_the_cards_unknown_and_says_since_when(tmp_path: Path) -> None:
    free = threading.Event()

    def machine() -> FakeMachine:
        free.wait()
        return eight_h100()

    reader = Reader(Sources(root=tmp_path), library=lambda: FakeNvml(machine), within_s=0.01)
    found = reader.read(Ours())
    assert found.gpus is None
    assert found.problems == ("GPUs are not known: the GPU driver has not answered for 0 s",)
    free.set()
    reader._driver._within = 30
    assert len(reader.read(Ours()).gpus or ()) == 8

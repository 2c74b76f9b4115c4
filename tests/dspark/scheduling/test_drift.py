"""Predicted confidence against observed acceptance while serving."""

from __future__ import annotations

import numpy as np
import pytest
from dspark.scheduling.drift import SurvivalDrift

GAMMA = 3


def served(drift, confidence, chances, blocks, seed=0):
    """Blocks of that confidence [gamma], each draft of which is accepted with the chance [gamma]."""
    random = np.random.default_rng(seed)
    for _ in range(blocks):
        accepted = int(np.logical_and.accumulate(random.random(GAMMA) < chances).sum())
        drift.observe(np.asarray(confidence), GAMMA, accepted)
    return drift


def test_corrected_confidence_comes_to_what_is_accepted():
    confidence, chances = np.array([0.9, 0.5, 0.6]), np.array([0.6, 0.8, 0.6])
    corrections = served(SurvivalDrift(GAMMA), confidence, chances, 2000).corrections()
    assert np.clip(confidence * corrections, 0, 1) == pytest.approx(chances, abs=0.08)


def test_what_was_served_long_ago_is_forgotten():
    drift = served(SurvivalDrift(GAMMA), [0.9] * 3, [0.2] * 3, 2000)
    served(drift, [0.9] * 3, [0.9] * 3, 2000)
    assert drift.corrections()[0] == pytest.approx(1.0, abs=0.08)


def test_a_draft_that_was_not_verified_teaches_nothing():
    drift = SurvivalDrift(GAMMA)
    for _ in range(100):
        drift.observe(np.array([0.9, 0.9, 0.9]), 1, 1)
        drift.observe(np.array([0.9, 0.9, 0.9]), 0, 0)
    assert drift.corrections()[0] > 1
    assert drift.corrections()[1:] == pytest.approx(np.ones(2))


def test_a_few_drafts_move_little():
    drift = SurvivalDrift(GAMMA)
    drift.observe(np.full(GAMMA, 0.9), GAMMA, 0)
    assert 0.8 < drift.corrections()[0] < 1


def test_confidence_that_holds_is_not_reported_as_parted():
    confidence = [0.9, 0.7, 0.5]
    assert not any(served(SurvivalDrift(GAMMA), confidence, confidence, 500, seed).parted().any() for seed in range(50))


def test_confidence_that_promises_too_much_or_too_little_is_reported_where_it_does():
    parted = served(SurvivalDrift(GAMMA), [0.9, 0.7, 0.5], [0.7, 0.7, 0.9], 1000).parted()
    assert parted.tolist() == [True, False, True]


def test_a_certain_but_small_gap_is_not_reported():
    drift = SurvivalDrift(GAMMA)
    for n in range(5000):
        drift.observe(np.full(GAMMA, 1.0), 1, int(n % 50 > 0))           # promised always, accepted 98 times of 100
    assert not drift.parted().any()


def test_nothing_is_reported_before_anything_was_seen():
    assert not SurvivalDrift(GAMMA).parted().any()
    drift = SurvivalDrift(GAMMA)
    drift.observe(np.full(GAMMA, 1.0), GAMMA, 0)
    assert not drift.parted().any()

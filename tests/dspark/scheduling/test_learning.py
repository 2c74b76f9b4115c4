"""What earlier rounds teach: confidence of lookup drafts, expectation of blocks, correction of confidence."""

from __future__ import annotations

import numpy as np
import pytest
from dspark.scheduling import AcceptanceMemory, BlockRecord, LookupRecord
from dspark.scheduling.drift import SurvivalDrift

GAMMA = 4


def test_a_lookup_drafts_survival_never_rises_and_ends_with_the_draft():
    memory = AcceptanceMemory(GAMMA)
    a = memory.lookups.survival(5, 3, True, LookupRecord())
    assert (np.diff(a) < 0).all() and a[2] > 0 and a[3] == 0
    assert (memory.lookups.survival(0, 0, True, LookupRecord()) == 0).all()


def test_longer_matches_that_were_right_more_often_are_trusted_more():
    memory = AcceptanceMemory(GAMMA)
    for _ in range(100):
        memory.lookups.observe(3, 0, 1, True, LookupRecord())
        memory.lookups.observe(8, 4, 4, True, LookupRecord())
    short, long = (memory.lookups.survival(match, 1, True, LookupRecord())[0] for match in (3, 8))
    assert short < 0.15 and long > 0.9


def test_a_sequence_that_repeats_itself_is_told_from_one_that_does_not():
    memory, looping, free = AcceptanceMemory(GAMMA), LookupRecord(), LookupRecord()
    for _ in range(20):
        memory.lookups.observe(4, 1, 1, True, looping)
        memory.lookups.observe(4, 0, 1, True, free)
    assert memory.lookups.survival(4, 1, True, looping)[0] > 2 * memory.lookups.survival(4, 1, True, free)[0]


def test_sampled_requests_do_not_lower_the_confidence_of_greedy_ones():
    memory = AcceptanceMemory(GAMMA)
    before = memory.lookups.survival(4, 1, True, LookupRecord())[0]
    for _ in range(50):
        memory.lookups.observe(4, 0, 1, False, LookupRecord())
    assert memory.lookups.survival(4, 1, True, LookupRecord())[0] == before


def test_a_sequence_without_blocks_expects_what_the_others_had_and_then_its_own():
    blocks, own = AcceptanceMemory(GAMMA).blocks, BlockRecord()
    for _ in range(300):
        blocks.observe(np.full(GAMMA, 0.3), True, BlockRecord())
    assert blocks.survival(True, own)[0] == pytest.approx(0.3, abs=0.01)
    for _ in range(20):
        blocks.observe(np.full(GAMMA, 0.9), True, own)
    assert blocks.survival(True, own)[0] > 0.8
    assert own.blocks == 20


def test_confidence_that_promises_too_much_is_corrected_down_at_its_position_alone():
    drift = SurvivalDrift(GAMMA)
    assert drift.corrections() == pytest.approx(np.ones(GAMMA))
    for n in range(400):
        drift.observe(np.full(GAMMA, 0.8), 2, 0 if n % 5 else 2)         # x_1: 0.2 accepted, 0.8 promised; x_2 rarely
    corrections = drift.corrections()
    assert corrections[0] == pytest.approx(0.25, abs=0.1)
    assert corrections[2:] == pytest.approx(np.ones(2))


def test_drafts_behind_a_rejected_one_are_not_judged():
    drift = SurvivalDrift(GAMMA)
    for _ in range(100):
        drift.observe(np.full(GAMMA, 0.5), GAMMA, 0)
    assert drift.corrections()[0] < 0.2
    assert drift.corrections()[1:] == pytest.approx(np.ones(GAMMA - 1))


def test_the_memory_counts_the_positions_where_acceptance_has_parted_from_confidence():
    memory = AcceptanceMemory(GAMMA)
    assert memory.parted_positions() == 0
    promised = np.full(GAMMA, 0.9)
    promised[1:] = 0.01
    for _ in range(200):
        memory.drift[False].observe(promised, GAMMA, 0)
    assert memory.parted_positions() == 1

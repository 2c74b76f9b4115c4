"""Sequential temperature scaling, and the figures that judge a calibration."""

from __future__ import annotations

import numpy as np
import pytest
from dspark.scheduling import conditional, survival
from dspark.scheduling.sts import (
    BINS,
    TEMPERATURES,
    expected_calibration_error,
    fit_temperatures,
    reliability,
    roc_auc,
)

ROUNDS = 20_000
TRUE_TEMPERATURES = np.array([2.0, 0.6, 3.2])


def rounds(temperatures=TRUE_TEMPERATURES, count=ROUNDS, seed=0):
    """Logits [N, gamma] whose drafts are accepted with sigmoid(logit / T), and whether x_1..x_k were."""
    random = np.random.default_rng(seed)
    logits = random.normal(1.0, 2.0, (count, len(temperatures)))
    accepted = random.random(logits.shape) < conditional(logits, temperatures)
    return logits, np.logical_and.accumulate(accepted, axis=1)


def errors(logits, survived, temperatures=None):
    a = survival(logits, temperatures)
    return [expected_calibration_error(a[:, k], survived[:, k]) for k in range(logits.shape[1])]


def test_the_temperatures_that_made_the_data_are_found_again():
    fitted = fit_temperatures(*rounds())
    steps = np.abs(np.log(fitted) - np.log(TRUE_TEMPERATURES)) / np.log(TEMPERATURES[1] / TEMPERATURES[0])
    assert (steps <= [2, 2, 4]).all(), fitted


def test_the_calibration_error_of_other_rounds_falls_at_every_position():
    fitted = fit_temperatures(*rounds())
    others = rounds(seed=1)
    before, after = np.array(errors(*others)), np.array(errors(*others, fitted))
    assert (after < before / 2).all() and (after < 0.01).all()


def test_the_order_inside_a_position_is_kept():
    logits, survived = rounds()
    scaled = conditional(logits, fit_temperatures(logits, survived))
    for k in range(logits.shape[1]):
        assert (np.diff(scaled[logits[:, k].argsort(), k]) >= 0).all()


def test_earlier_temperatures_do_not_depend_on_later_positions():
    logits, survived = rounds()
    assert (fit_temperatures(logits[:, :2], survived[:, :2]) == fit_temperatures(logits, survived)[:2]).all()


def test_drafts_that_were_never_verified_do_not_count():
    logits, survived = rounds()
    known = np.ones(logits.shape, np.bool_)
    known[::2, 1:] = False
    kept = fit_temperatures(logits[1::2], survived[1::2])
    overwritten = survived & known
    fitted = fit_temperatures(logits, overwritten, known)
    assert np.log(fitted / kept) == pytest.approx(0, abs=0.25)
    assert np.abs(np.log(fit_temperatures(logits, overwritten) / kept)).max() > 0.5       # as failures, they would


def test_where_nothing_is_known_or_nothing_matters_confidence_stays_as_it_is():
    logits, survived = rounds(count=50)
    known = np.zeros(logits.shape, np.bool_)
    assert fit_temperatures(logits, survived, known).tolist() == [1, 1, 1]
    assert fit_temperatures(np.zeros((50, 3)), survived).tolist() == [1, 1, 1]            # sigmoid(0 / T) is 1/2


def test_confidence_that_fits_already_is_left_alone():
    logits = np.repeat([[-2.0], [2.0]], 5000, axis=0)
    survived = np.zeros((10_000, 1), np.bool_)
    low, high = conditional(np.array([[-2.0], [2.0]])).ravel()
    survived[: round(5000 * low)] = survived[5000 : 5000 + round(5000 * high)] = True
    assert fit_temperatures(logits, survived).tolist() == [1]


def test_a_drafter_without_confidence_is_fitted_to_itself():
    assert fit_temperatures(np.full((9, 2), np.nan), np.ones((9, 2), np.bool_)).tolist() == [1, 1]


def test_calibration_error_is_the_mean_gap_of_the_bins():
    predicted = np.array([0.05, 0.05, 0.95, 1.0])
    observed = np.array([True, False, True, True])
    assert expected_calibration_error(predicted, observed) == pytest.approx((2 * 0.45 + 0.05) / 4)
    found = reliability(predicted, observed)
    assert len(found.counts) == BINS and found.counts[[0, -1]].tolist() == [2, 2]
    assert found.observed[[0, -1]].tolist() == [0.5, 1.0] and found.predicted[-1] == pytest.approx(0.975)
    assert expected_calibration_error(predicted[:0], observed[:0]) == 0


@pytest.mark.parametrize("values", [3, 1000])                        # with many ties, and with few
def test_auc_is_the_share_of_pairs_in_the_right_order(values):
    random = np.random.default_rng(values)
    scores = random.integers(0, values, 200) / values
    observed = random.random(200) < 0.2 + 0.6 * scores
    true, false = scores[observed][:, None], scores[~observed][None, :]
    assert roc_auc(scores, observed) == pytest.approx(((true > false) + 0.5 * (true == false)).mean())


def test_auc_needs_both_kinds():
    assert roc_auc(np.array([0.1, 0.9]), np.array([True, True])) is None
    assert roc_auc(np.array([0.1, 0.9]), np.array([False, False])) is None

"""Row rules change how a step is laid out, never what comes out of it."""

from dataclasses import replace

import numpy as np
import pytest
from dspark.engines.paged_runner import PagedRunner, RaggedBatch
from dspark.engines.rows import ATTENTION_PADDING, NO_RULES, TOKEN_PADDING, RowRules
from dspark_build.probe import Probe, exact_settings
from tiny_targets import built, ints, loaded, random_tokens

COUNTS = (1, 40, 1, 9, 33)
TOKENS = random_tokens(sum(COUNTS), 8)
BATCH = RaggedBatch(ints(range(5)), ints([0] * 5), ints(COUNTS), ints(TOKENS))
ASKED = ints([0, 1, 5, 40, 41, 45, 50, 83])


def outputs(rules: RowRules, precision: str = "fp32"):
    record = loaded("llama", precision).record
    return PagedRunner(built("llama", precision), record, rules).run(BATCH, ASKED, ints(range(3, 60))).copy()


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("padding", [ATTENTION_PADDING, TOKEN_PADDING])
@pytest.mark.parametrize("limit", [64, 16, 3, 2])
def test_padding_and_splitting_are_invisible_to_the_bit(precision, padding, limit):
    rules = loaded("llama", precision).record.rows
    if rules.padding == TOKEN_PADDING and padding == ATTENTION_PADDING:
        pytest.skip("this machine's kernels need the stronger padding")
    expected = outputs(rules, precision)
    result = outputs(RowRules(padding, 2, 2, min(limit, rules.max_rows_per_run)), precision)
    assert np.array_equal(result.logits, expected.logits)
    assert np.array_equal(result.features, expected.features)


def test_without_rules_results_are_close_but_need_not_be_equal():
    assert np.abs(outputs(NO_RULES).logits - outputs(loaded().record.rows).logits).max() < 1e-3


@pytest.mark.parametrize("flavour", ["llama", "qwen3"])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("seed", [1, 2])
def test_logits_do_not_depend_on_the_batch(flavour, precision, seed):
    record = loaded(flavour, precision).record
    assert record.exact
    assert Probe(built(flavour, precision), record, record.rows, seed).first_difference() == 0.0


def test_the_probe_notices_an_engine_that_is_not_exact():
    class Drifting(Probe):
        """Its logits depend on how many tokens share the step, as those of an unpadded int8 engine can."""

        def _run_alone(self, start, count):
            return super()._run_alone(start, count) + (1e-6 if count == 1 else 0)

    record = loaded().record
    assert Drifting(built(), record, record.rows).first_difference() > 0.0


def test_settings_that_were_exact_at_build_time_are_found_again():
    record = loaded("llama", "int8").record
    unsettled = replace(record, rows=replace(record.rows, max_rows_per_run=0), exact=False)
    settled, _ = exact_settings(built("llama", "int8"), unsettled)
    assert settled == record

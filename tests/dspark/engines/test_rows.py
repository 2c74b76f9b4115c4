"""Laying out ragged steps."""

import numpy as np
from dspark.engines.rows import ATTENTION_PADDING, TOKEN_PADDING, RowRules, padded, plan_rows
from hypothesis import given
from hypothesis import strategies as st

sequences = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 9)), min_size=1, max_size=8)
rules = st.builds(
    RowRules, st.sampled_from([ATTENTION_PADDING, TOKEN_PADDING]), st.integers(1, 3), st.integers(1, 4), st.just(0)
)


@given(sequences, rules)
def test_every_token_keeps_its_position_and_no_kernel_sees_too_few_rows(sequences, rules):
    positions = np.array([position for position, _ in sequences], np.int32)
    counts = np.array([count for _, count in sequences], np.int32)
    plan = plan_rows(positions, counts, rules)
    total = counts.sum()
    assert list(plan.token_of_row[plan.row_of_token]) == list(range(total))
    expected = np.concatenate([np.arange(position, position + count) for position, count in sequences])
    assert list(plan.position_of_row[plan.row_of_token]) == list(expected)
    assert list(plan.attention_rows[plan.output_rows]) == list(range(plan.token_of_row.size))
    assert plan.attention_counts.min() >= rules.min_rows_per_sequence
    assert plan.token_of_row.size >= rules.min_rows_per_run
    assert plan.attention_counts.sum() == plan.attention_rows.size


@given(sequences, rules)
def test_padding_follows_the_tokens_it_repeats(sequences, rules):
    """A sequence's rows are contiguous and its own tokens come first: padding lands on positions that are void."""
    positions = np.array([position for position, _ in sequences], np.int32)
    counts = np.array([count for _, count in sequences], np.int32)
    plan = plan_rows(positions, counts, rules)
    tokens_in_attention = plan.token_of_row[plan.attention_rows]
    begin, first = 0, 0
    for count, rows in zip(counts, plan.attention_counts, strict=True):
        own = tokens_in_attention[begin : begin + rows]
        assert list(own[:count]) == list(range(first, first + count))
        assert set(own[count:]) <= {first + count - 1}
        begin, first = begin + rows, first + count


def test_only_a_lone_step_pays_for_padding_in_the_matrix_products():
    rules = RowRules(ATTENTION_PADDING, 2, 2, 64)
    ones = np.ones(8, np.int32)
    assert plan_rows(ones, ones, rules).token_of_row.size == 8
    assert plan_rows(ones[:1], ones[:1], rules).token_of_row.size == 2


def test_asking_for_nothing_costs_nothing():
    rules = RowRules(ATTENTION_PADDING, 2, 2, 64)
    assert padded(np.zeros(0, np.int64), rules).size == 0
    assert list(padded(np.array([7]), rules)) == [7, 7]

"""Accounting of the KV pool."""

import pytest
from dspark.engines.kv_blocks import KvBlocks, SlotDemand
from dspark.errors import EngineError
from hypothesis import given
from hypothesis import strategies as st

BLOCKS, SIZE, SLOTS = 12, 4, 5

demand = st.builds(SlotDemand, st.integers(0, SLOTS - 1), st.integers(1, 30), st.booleans())
steps = st.lists(
    st.one_of(st.integers(0, SLOTS - 1), st.lists(demand, min_size=1, unique_by=lambda d: d.slot)), max_size=30
)


def tables(blocks: KvBlocks) -> list[list[int]]:
    return [list(blocks.table(slot, BLOCKS * SIZE)) for slot in range(SLOTS)]


@given(steps)
def test_blocks_are_never_lost_shared_or_half_reserved(steps):
    blocks = KvBlocks(BLOCKS, SIZE, SLOTS)
    for step in steps:
        before, free = tables(blocks), blocks.free
        if isinstance(step, int):
            blocks.release(step)
            assert blocks.held(step) == 0
        else:
            try:
                blocks.reserve(step)
            except EngineError:
                assert tables(blocks) == before and blocks.free == free
            else:
                for demand in step:
                    assert blocks.held(demand.slot) * SIZE >= demand.tokens
                    if not demand.restarts:
                        kept = before[demand.slot]
                        assert tables(blocks)[demand.slot][: len(kept)] == kept
        held = [block for table in tables(blocks) for block in table]
        assert len(set(held)) == len(held)
        assert len(held) + blocks.free == BLOCKS


def test_a_table_ends_with_the_block_of_the_last_token():
    blocks = KvBlocks(BLOCKS, SIZE, SLOTS)
    blocks.reserve([SlotDemand(0, 9, True)])
    assert [blocks.table(0, tokens).size for tokens in (1, 4, 5, 8, 9)] == [1, 1, 2, 2, 3]


def test_a_restarting_slot_may_use_its_own_blocks_again():
    blocks = KvBlocks(BLOCKS, SIZE, SLOTS)
    blocks.reserve([SlotDemand(0, BLOCKS * SIZE, True)])
    with pytest.raises(EngineError, match="exhausted"):
        blocks.reserve([SlotDemand(1, 1, True)])
    blocks.reserve([SlotDemand(0, SIZE, True), SlotDemand(1, SIZE, True)])
    assert blocks.free == BLOCKS - 2

"""Which steps `dspark profile` measures, and in which slots of how much context."""

from __future__ import annotations

from dataclasses import dataclass

from dspark.engines.contract import DrafterLimits, TargetLimits

SHORT, LONG = 64, 512                # tokens behind a sequence
LONG_SHARE, MOST_LONG = 4, 8         # one slot in four, at most eight, has the long context
BLOCK_LENGTHS = (1, 2, 3, 4, 6, 8)   # tokens of every sequence, beside the longest
PROMPT_STEPS = (16, 32, 64, 128, 256)    # tokens of a step that reads a prompt
WITH_PROMPTS = 8                     # sequences that decode while one of them reads a prompt
PADDING = 8                          # rows that an engine may write beyond a step's tokens


@dataclass(frozen=True)
class TargetSize:
    """A step of B tokens for R sequences, in slots with the long context or in the others."""

    sequences: int
    tokens: int
    long: bool = False


@dataclass(frozen=True)
class DrafterSize:
    sequences: int


Size = TargetSize | DrafterSize


@dataclass(frozen=True)
class SlotPlan:
    """The slots with short context, from 0 on, and after them those with long context."""

    short_slots: int
    short_context: int
    long_slots: int
    long_context: int


def plan_slots(limits: TargetLimits) -> SlotPlan:
    """As many slots as the engine has, and as much context as its pool and its longest sequence allow."""
    short, long = min(SHORT, limits.max_context // 4), min(LONG, limits.max_context // 2)
    slots, room = limits.max_slots, limits.max_draft_tokens + 1 + PADDING
    while True:
        long_slots = min(slots // LONG_SHARE, MOST_LONG) if long > short else 0
        contexts = [short] * (slots - long_slots) + [long] * long_slots
        blocks = [-(-(context + room) // limits.kv_block_size) for context in contexts]
        prompt = -(-max(PROMPT_STEPS) // limits.kv_block_size)
        if sum(blocks) + prompt <= limits.kv_blocks or slots == 1:
            return SlotPlan(slots - long_slots, short, long_slots, long)
        if long_slots:
            long //= 2
        else:
            slots -= 1


def target_sizes(limits: TargetLimits, gamma: int, slots: SlotPlan, edge: int) -> list[TargetSize]:
    """Steps to measure, small ones first; edge: tokens of the largest step that the engine runs in one piece, 0: any.

    At the edge the curve has a ledge, so both of its sides are measured.
    """
    most = slots.short_slots + slots.long_slots
    lengths = {length for length in BLOCK_LENGTHS if length <= gamma} | {gamma + 1}
    found = set()
    for sequences in numbers_up_to(most):
        tokens = {sequences * length for length in lengths}
        if sequences in (1, WITH_PROMPTS):
            longest = min(limits.max_context - slots.short_context, max(PROMPT_STEPS))
            tokens |= {step for step in (*PROMPT_STEPS, edge, edge + 1) if max(tokens) < step <= longest}
        if sequences < edge < sequences * (gamma + 1):
            tokens |= {edge, edge + 1}
        found |= {TargetSize(sequences, count) for count in tokens}
    for sequences in {1, slots.long_slots // 2, slots.long_slots} - {0} if slots.long_slots else ():
        found |= {TargetSize(sequences, sequences * length, long=True) for length in (1, gamma + 1)}
    return sorted(found, key=lambda size: (size.tokens, size.sequences, size.long))


def drafter_sizes(limits: DrafterLimits, most: int, edge: int) -> list[DrafterSize]:
    """Drafts to measure, for at most so many sequences; edge: those that the engine drafts for in one piece, 0: any."""
    most = min(most, limits.max_slots)
    numbers = set(numbers_up_to(most))
    if edge:
        numbers |= {n for border in range(edge, most, edge) for n in (border, border + 1)}
    return [DrafterSize(sequences) for sequences in sorted(numbers)]


def numbers_up_to(most: int) -> list[int]:
    """1, 2, 4, 8, … and `most`."""
    return sorted({2**power for power in range(most.bit_length())} | {most})

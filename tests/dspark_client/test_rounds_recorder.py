"""What is kept of the steps between a round loop and its engines."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from dspark_client.rounds_recorder import RoundsRecorder

GAMMA, STOP = 3, 2


class Scripted:
    """Engines that answer what the test says, whatever they are asked, and a recorder before them."""

    def __init__(self) -> None:
        self.answers: list[object] = []
        self.recorder = RoundsRecorder(self._answer, self._answer, frozenset({STOP}))

    def _answer(self, _: object) -> object:
        return self.answers.pop()

    def draft(self, logits: dict[int, list[float]]) -> None:
        """Blocks of these confidence logits by slot."""
        result = SimpleNamespace(confidence_logits=np.array(list(logits.values()), np.float32))
        self.answers.append(result)
        slots = np.array(list(logits), np.int32)
        step = SimpleNamespace(slots=slots, drafts=np.ones(len(slots), np.bool_))
        assert self.recorder.draft(step) is result                                      # type: ignore[arg-type]

    def verify(self, *rows: tuple[int, int, list[int], int, int], samples: bool = True) -> None:
        """Rows of slot, position, tokens read, how many of these are drafts, and how many of them are accepted."""
        slots, positions, tokens, draft_counts, accepted = zip(*rows, strict=True)
        self.answers.append(SimpleNamespace(accepted=np.array(accepted)))
        self.recorder.verify(SimpleNamespace(                                           # type: ignore[arg-type]
            slots=np.array(slots), positions=np.array(positions), token_counts=np.array([len(t) for t in tokens]),
            draft_counts=np.array(draft_counts), samples=np.full(len(rows), samples), tokens=np.concatenate(tokens),
        ))

    def taken(self) -> list[tuple[list[int], list[tuple[int, list[float], int, int]]]]:
        """Prompt and rounds of every answer: number, logits, verified, accepted."""
        return [
            (answer.prompt, [(r.number, r.logits.tolist(), r.verified, r.accepted) for r in answer.rounds])
            for answer in self.recorder.take()
        ]


def test_a_round_has_the_logits_of_its_own_slot():
    engines = Scripted()
    engines.verify((5, 0, [10, 11], 0, 0), (3, 0, [20], 0, 0))
    engines.draft({3: [1, 2, 3], 5: [4, 5, 6]})
    engines.verify((5, 2, [12, 7, 8, 9], 3, 1), (3, 1, [21, 6, 5, 4], 3, 3))
    engines.draft({5: [7, 8, 9]})
    engines.verify((5, 4, [12, 7, 8], 2, 2))
    assert engines.taken() == [
        ([10, 11], [(0, [4, 5, 6], 3, 1), (1, [7, 8, 9], 2, 2)]),
        ([20], [(0, [1, 2, 3], 3, 3)]),
    ]


def test_a_prompt_is_what_is_read_in_pieces_before_the_first_token():
    engines = Scripted()
    engines.verify((0, 0, [10, 11], 0, 0), samples=False)
    engines.verify((0, 2, [12], 0, 0))
    engines.verify((0, 3, [13], 0, 0))                                   # a round without drafts
    assert engines.taken() == [([10, 11, 12], [])]


def test_the_next_sequence_of_a_slot_has_an_answer_of_its_own():
    engines = Scripted()
    for prompt in ([10], [11]):
        engines.verify((0, 0, prompt, 0, 0))
        engines.draft({0: [1, 1, 1]})
        engines.verify((0, 1, [9, 8, 7, 6], 3, 0))
    assert [(prompt, len(rounds)) for prompt, rounds in engines.taken()] == [([10], 1), ([11], 1)]
    assert engines.taken() == []


def test_a_stop_token_ends_a_block_whether_it_is_accepted_or_not():
    engines = Scripted()
    engines.verify((0, 0, [10], 0, 0), (1, 0, [11], 0, 0))
    engines.draft({0: [1, 1, 1], 1: [1, 1, 1]})
    engines.verify((0, 1, [9, 8, STOP, 7], 3, 3), (1, 1, [9, 8, STOP, 7], 3, 0))
    assert [rounds[0][2:] for _, rounds in engines.taken()] == [(2, 2), (2, 0)]


def test_drafts_that_did_not_come_from_the_drafter_are_no_rounds_of_it():
    engines = Scripted()
    engines.verify((0, 0, [10], 0, 0))
    engines.draft({0: [1, 1, 1]})
    engines.verify((0, 1, [9], 0, 0))                                    # the block was not verified
    engines.verify((0, 2, [9, 8, 7], 2, 1))                              # drafts of another source
    assert engines.taken() == [([10], [])]

"""The round loop, a sequence's life, admission, request parsing, streaming text. See docs/structure.md."""

from dspark.orchestrator.chat import ChatTemplate, Message, parse_messages
from dspark.orchestrator.orchestrator import Orchestrator
from dspark.orchestrator.output import Chunk, FinishReason, Origin, Sink
from dspark.orchestrator.parameters import RequestTensors
from dspark.orchestrator.randomness import Purpose, RequestRandomness
from dspark.orchestrator.request import GenerationRequest, RequestRules, parse_request
from dspark.orchestrator.round_loop import Engines, RoundLoop
from dspark.orchestrator.statistics import RoundReport
from dspark.orchestrator.text import IncrementalDetokenizer, StopChecker
from dspark.orchestrator.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Chunk",
    "Engines",
    "FinishReason",
    "GenerationRequest",
    "IncrementalDetokenizer",
    "Message",
    "Orchestrator",
    "Origin",
    "Purpose",
    "RequestRandomness",
    "RequestRules",
    "RequestTensors",
    "RoundLoop",
    "RoundReport",
    "Sink",
    "StopChecker",
    "Tokenizer",
    "parse_messages",
    "parse_request",
]

"""The orchestrator: requests in from any thread, one thread that runs the round loop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from dspark.errors import ConfigurationError, EngineError, InvalidRequestError, OverloadedError
from dspark.orchestrator.admission import Admission, Capacity
from dspark.orchestrator.output import Outlet, Sink
from dspark.orchestrator.request import GenerationRequest
from dspark.orchestrator.round_loop import Engines, RoundLoop
from dspark.orchestrator.sequence import PendingContext, Sequence
from dspark.orchestrator.statistics import RoundReport, SequenceStatistics
from dspark.orchestrator.tokenizer import Tokenizer
from dspark.scheduling import Calibration, ObservingCosts, Policy
from dspark.settings import ServingSettings

log = logging.getLogger("dspark")
Observer = Callable[[RoundReport], None]


def _nobody(report: RoundReport) -> None:
    pass


class Orchestrator:
    """Continuous batching of speculative decoding. `start` it, `submit` to it, `close` it.

    `observer` is called on the loop's thread after every round; what it raises is logged and costs nobody anything.
    `policies` makes a policy of its name; where it is given, a request may change the policy while no other is served.
    """

    def __init__(
        self, engines: Engines, tokenizer: Tokenizer, policy: Policy, settings: ServingSettings,
        calibration: Calibration | None = None, observer: Observer = _nobody, costs: ObservingCosts | None = None,
        policies: Callable[[str], Policy] | None = None,
    ) -> None:
        self._engines = engines
        self._tokenizer = tokenizer
        self.observer = observer
        slots = min(settings.max_slots, engines.target_limits.max_slots, engines.drafter_limits.max_slots)
        self._admission = Admission(Capacity.of(engines.target_limits, slots, settings.max_queue))
        self.loop = RoundLoop(
            engines, policy, self._admission, settings.prefill_chunk, calibration, costs, settings.diagnose,
            settings.coupled,
        )
        self._policies = policies
        self._policy_name = settings.policy
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="dspark-rounds", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: GenerationRequest, sink: Sink) -> None:
        """Queue a request; its output goes to `sink`, from another thread.

        Raises InvalidRequestError for one that can never fit, OverloadedError when the queue is full or closed; the
        sink then hears nothing.
        """
        limits = self._engines.drafter_limits
        sequence = Sequence(
            request, sink, Outlet(request, self._tokenizer.detokenizer()),
            SequenceStatistics(self._engines.block_size, time.perf_counter()),
            PendingContext(limits.window, limits.feature_size), self._engines.block_size,
        )
        with self._wake:
            if self._closed:
                raise OverloadedError("the server is shutting down")
            if request.policy not in (None, self._policy_name):
                self._change_policy(str(request.policy))
            self._admission.offer(sequence)
            self._wake.notify()

    def _change_policy(self, name: str) -> None:
        """Raises InvalidRequestError where that is not allowed or no such policy, OverloadedError while others run."""
        if self._policies is None:
            raise InvalidRequestError("policy: this server keeps its policy; start it with --switchable-policies")
        try:
            policy = self._policies(name)
        except ConfigurationError as error:
            raise InvalidRequestError(str(error)) from error
        if self._admission.waiting or self._admission.kv_blocks_used:
            raise OverloadedError(f"the policy changes to {name!r} only while no other request is served")
        self.loop.policy, self._policy_name = policy, name

    def close(self) -> None:
        """Finish the round in progress, then fail whatever is still waiting or running. Does so once."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while self._wait_for_work():
            try:
                report = self.loop.round()
            except Exception as error:            # a fault of our own: its requests end, the server does not
                log.exception("a round failed")
                self.loop.fail_all(EngineError(f"internal error: {error!r}"))
                continue
            try:
                self.observer(report)
            except Exception:
                log.exception("the observer of rounds failed")
        self.loop.fail_all(OverloadedError("the server is shutting down"))

    def _wait_for_work(self) -> bool:
        """Sleep until there is a sequence to run; false once closed."""
        with self._wake:
            while not (self._closed or self.loop.active or self._admission.waiting):
                self._wake.wait()
            return not self._closed

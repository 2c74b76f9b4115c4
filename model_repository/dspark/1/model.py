"""The orchestrator as a Triton model: requests are queued, one thread streams the answers (docs/structure.md)."""

from pathlib import Path

from dspark.engines.contract import DrafterResult, EngineFolder, TargetResult
from dspark.engines.loading import read_drafter_limits, read_target_limits
from dspark.errors import DSparkError
from dspark.orchestrator import Engines, Orchestrator, RequestRules, Tokenizer, parse_request
from dspark.scheduling import Calibration, make_scheduler
from dspark.settings import ServingSettings
from dspark.triton import Outbox, RoundMetrics, TritonSink, remote_step, request_tensors


class TritonPythonModel:
    def initialize(self, args):
        settings = ServingSettings.read()
        folder = EngineFolder(Path(settings.engine_folder))
        engines = Engines(
            target=remote_step("target", TargetResult),
            drafter=remote_step("drafter", DrafterResult),
            target_limits=read_target_limits(folder.target),
            drafter_limits=read_drafter_limits(folder.drafter),
        )
        gamma = engines.block_size
        tokenizer = Tokenizer(folder.tokenizer)
        self.rules = RequestRules(tokenizer, engines.target_limits, settings.default_max_tokens)
        self.metrics = RoundMetrics(gamma)
        self.outbox = Outbox()
        self.orchestrator = Orchestrator(
            engines, tokenizer, make_scheduler(settings.policy, gamma), settings,
            Calibration.read(folder.drafter, gamma), self.metrics.report,
        )
        self.orchestrator.start()

    def execute(self, requests):
        for request in requests:
            sink = TritonSink(request, self.outbox)
            try:
                self.orchestrator.submit(parse_request(request_tensors(request), self.rules), sink)
            except DSparkError as error:
                sink.fail(error)

    def finalize(self):
        self.orchestrator.close()
        self.outbox.close()
        self.metrics.close()

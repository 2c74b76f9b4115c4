"""The orchestrator as a Triton model: requests are queued, one thread streams the answers (docs/structure.md)."""

from dspark.deployment import deploy
from dspark.engines.contract import DrafterResult, TargetResult
from dspark.errors import DSparkError
from dspark.orchestrator import parse_request
from dspark.settings import ServingSettings
from dspark.triton import Outbox, RoundMetrics, TritonSink, remote_step, request_tensors


class TritonPythonModel:
    def initialize(self, args):
        target, drafter = remote_step("target", TargetResult), remote_step("drafter", DrafterResult)
        self.deployment = deploy(ServingSettings.read(), target, drafter)
        self.metrics = RoundMetrics(self.deployment.block_size, self.deployment.profiled)
        self.outbox = Outbox()
        self.deployment.orchestrator.observer = self.metrics.report
        self.deployment.orchestrator.start()

    def execute(self, requests):
        for request in requests:
            sink = TritonSink(request, self.outbox)
            try:
                found = parse_request(request_tensors(request), self.deployment.rules)
                self.deployment.orchestrator.submit(found, sink)
            except DSparkError as error:
                sink.fail(error)

    def finalize(self):
        self.deployment.orchestrator.close()
        self.outbox.close()
        self.metrics.close()

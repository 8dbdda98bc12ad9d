"""A detector and an action of one's own, named by a policy like those that come with the guard.

    python examples/custom_detector.py

A package offers its own to every script on the machine, without an import, by entry points:

    [project.entry-points."guard.detectors"]
    long_codes = "my_package.faults:LongCodes"
    [project.entry-points."guard.actions"]
    decay_weights = "my_package.remedies:DecayWeights"
"""

import math

import torch

import guard
from guard.actions import Run


@guard.detector("long_codes")
class LongCodes(guard.Detector):
    """Long codes: the mean code of the autoencoder is longer than it should be."""

    class Params(guard.Detector.Params):
        longest: float = 3.0

    def score(self, s: guard.Signals) -> guard.Detection | None:
        length = (s.metrics or {}).get("code_length", 0.0)
        if length <= self.params.longest:
            return None
        return guard.Detection(
            "long_codes",
            "code_length",
            length,
            self.params.longest,
            math.nan,
            s.tick,
            f"codes are {length:.2f} long, more than {self.params.longest:.2f}",
        )


@guard.action("decay_weights")
class DecayWeights(guard.Action):
    """Decay weights: shrink the encoder's weights by a factor."""

    class Params(guard.Action.Params):
        factor: float = 0.7

    def apply(self, run: Run, detection: guard.Detection) -> guard.Result:
        with torch.no_grad():
            encoder.weight.mul_(self.params.factor)
        return guard.Result("decay_weights", f"shrank the encoder to {self.params.factor:g} of its size")

    def describe(self) -> str:
        return f"shrink the encoder to {self.params.factor:g} of its size"


POLICY = {
    "version": 1,
    "policies": [
        {
            "name": "shrink-on-long-codes",
            "trigger": {"type": "long_codes", "longest": 2.0},
            "actions": [{"type": "decay_weights", "factor": 0.5}],
            "resolve_after": 10,
        }
    ],
    "receivers": {"console": {"type": "console"}},
}

torch.manual_seed(0)
encoder, decoder = torch.nn.Linear(8, 4), torch.nn.Linear(4, 8)
model = torch.nn.ModuleList([encoder, decoder])
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
with guard.attach(model, optimizer, policy=POLICY, run_dir="runs/custom-detector", resume="never") as g:
    for step in range(60):
        if step == 30:  # the fault: somebody scales the encoder up
            with torch.no_grad():
                encoder.weight.mul_(3.0)
        x = torch.randn(32, 8)
        code = encoder(x)
        loss = (decoder(code) - x).square().mean()
        optimizer.zero_grad()
        g.backward(loss)
        g.log(code_length=code.detach().norm(dim=1).mean().item())
        optimizer.step()

for incident in g.incidents:
    print(f"{incident.id} {incident.policy}: {incident.status}, {incident.evidence['detection']['message']}")
    for attempt in incident.attempts:
        print(f"  step {attempt.step}: {attempt.results[0].summary}")

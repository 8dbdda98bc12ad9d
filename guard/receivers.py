"""From a policy's receivers to the courier's. Loads no torch: the command line delivers too."""

from __future__ import annotations

from guard.notify import Escalation, ReceiverSpec
from guard.policy import PolicySet


def receiver_specs(policies: PolicySet) -> list[ReceiverSpec]:
    """The policy's receivers as the courier wants them; secrets are read when they are needed."""
    return [
        ReceiverSpec(
            name=name,
            type=r.type,
            min_severity=r.min_severity,
            mention=r.mention,
            channel=r.channel,
            token=r.credential if r.token or r.token_file else None,
            webhook_url=r.credential if r.webhook_url or r.url else None,
            base_url=r.base_url,
            off_reason=r.off_reason,
            remind_every=r.remind_every,
            escalate=Escalation(r.escalate.after, r.escalate.to) if r.escalate else None,
            lifecycle=r.lifecycle,
            secret=r.secret.reveal if r.secret else None,
        )
        for name, r in policies.receivers.items()
    ]

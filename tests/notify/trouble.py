"""What can be wrong with Slack, for tables of tests."""

from __future__ import annotations

from notify.fake_slack import TOKEN, FakeSlack


class Trouble:
    """What is wrong with Slack for ten minutes, at one place of the story.

    Args:
        fault: taken by each request of one method; or what is broken for all of them.
        reason: in what `guard incidents` shows meanwhile.
    """

    def __init__(self, fault: str, reason: str) -> None:
        self.fault, self.reason = fault, reason

    def begin(self, slack: FakeSlack, method: str) -> None:
        match self.fault:
            case "down":
                slack.stop()
            case "revoked":
                slack.tokens.clear()
            case "archived":
                slack.archived.add("C0000001")
            case fault:
                slack.fail(*[fault] * 12, method=method)

    def end(self, slack: FakeSlack) -> None:
        slack.faults.clear()
        slack.archived.clear()
        slack.tokens.add(TOKEN)
        slack.release.set()
        if self.fault == "down":
            slack.start()


TABLE = [
    Trouble("down", "connection refused"),
    Trouble("500", "HTTP 500 without a proper answer"),
    Trouble("html", "HTTP 500 without a proper answer"),
    Trouble("429:120", "asked to slow down"),
    Trouble("lost", "connection lost"),
    Trouble("hang", "no answer in time"),
    Trouble("done:internal_error", "internal_error"),
    Trouble("revoked", "invalid_auth"),
    Trouble("archived", "is_"),  # is_archived for a post, is_inactive for an edit
]

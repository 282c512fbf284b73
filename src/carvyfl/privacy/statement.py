"""The guarantee of private messages in words, for records, terminals and reports."""

from __future__ import annotations


def guarantee(epsilon: float, delta: float, messages: int = 1) -> str:
    """Say what (ε, δ) of a client's messages covers, as plain sentences.

    ``messages`` is how many different ones a client has sent of its data.
    """
    what = "one message" if messages == 1 else f"each of {messages} messages"
    sentences = [
        f"Differential privacy of {what} against the server and everybody else: "
        f"ε = {epsilon:g}, δ = {delta:g} for one sample added to a client's data or removed.",
        "Groups, models, votes and certificates are functions of the messages and cost nothing "
        "more.",
        "Clients add their own noise, so the guarantee holds for each of them, whatever all "
        "others do.",
        "It adds up over the messages of one client: runs, settings or data that differ.",
    ]
    if messages > 1:
        sentences.append(
            f"Together they are private with ε = {messages * epsilon:g}, "
            f"δ = {messages * delta:g} at most."
        )
    return " ".join(sentences)

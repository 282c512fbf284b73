"""What is said of a private run."""

from carvyfl.privacy import guarantee


def test_both_numbers_are_said_and_what_they_cover() -> None:
    text = guarantee(2.0, 1e-5)
    assert "one message" in text
    assert "ε = 2, δ = 1e-05 for one sample added to a client's data or removed" in text
    assert "adds up over the messages" in text
    together = guarantee(2.0, 1e-5, messages=3)
    assert "each of 3 messages" in together
    assert "ε = 6, δ = 3e-05 at most" in together


def test_sentences_are_short() -> None:
    for sentence in guarantee(0.5, 1e-5, messages=2).split(". "):
        assert len(sentence.split()) <= 30

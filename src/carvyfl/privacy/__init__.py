"""Differential privacy against the server: noise, what was spent on a client's data, the words."""

from carvyfl.privacy.class_sums import NoisySums, noise_for_sums, noisy_sums
from carvyfl.privacy.ledger import Ledger, LimitError, Spending
from carvyfl.privacy.noise import GaussianNoise, secure_noise, simulated_noise
from carvyfl.privacy.statement import guarantee

__all__ = [
    "GaussianNoise",
    "Ledger",
    "LimitError",
    "NoisySums",
    "Spending",
    "guarantee",
    "noise_for_sums",
    "noisy_sums",
    "secure_noise",
    "simulated_noise",
]

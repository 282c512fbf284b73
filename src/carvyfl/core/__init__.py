"""What every step uses: errors, checks of numbers, randomness, files, locks, registries."""

"""The stories of `pitstop demo`, each on real processes."""

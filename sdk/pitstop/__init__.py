"""Pitstop inside a training process: `import pitstop`."""

"""What to do about a failure: policy, workflow, drivers. Pure functions over frozen dataclasses, drivers at the edge."""

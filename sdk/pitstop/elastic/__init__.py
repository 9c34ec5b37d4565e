"""Going on in the same process: survivors of a lost rank form a new group and finish the step that they were in."""

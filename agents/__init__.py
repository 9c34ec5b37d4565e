"""What is not known yet: memory of past failures, the model client, the failure agent and its grounding, the ladder.

Deterministic first: everything here runs only where the rules abstained, and none of it chooses an action.
"""

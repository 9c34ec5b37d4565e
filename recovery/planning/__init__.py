"""Who runs where after something changed: the throughput of each task by size, and the allocation that is worth most (WAF)."""

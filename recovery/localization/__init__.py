"""Which node, link or group of nodes is broken: probes in rounds, and what their results prove.

Two-round allgather localisation (Acme, NSDI'24, section 6.1) with what the paper leaves open: intermittent faults, links between
good nodes, whole racks and rails, slow nodes, too few good partners.
"""

"""Find the node or link that breaks a job's collectives by small allgather probes (Acme's two-round test, with what it leaves open).

`rounds` says which probes come next, `judgement` what the results prove; both are pure, `simulation` measures their error rates.
"""

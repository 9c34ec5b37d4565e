"""What is known: taxonomy, signals and evidence, rule packs, matching, compression, cause ranking. The ground floor."""

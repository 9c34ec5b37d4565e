"""The doors for lines: foreign protocols decoded into records, matched in processes of their own, written by one writer."""

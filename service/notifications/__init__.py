"""Telling people: who hears of what (routes), what is owed (owed), and sending it (delivery)."""

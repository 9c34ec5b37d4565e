"""The HTTP service: ingest, incidents, launcher API, dashboard, store. It wires everything and decides nothing."""

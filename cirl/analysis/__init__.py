"""Measures beyond the paper: true interventions, audits, schematics, benchmark."""

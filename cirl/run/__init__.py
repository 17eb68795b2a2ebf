"""What a run is and how it survives: fields, recipe, folder, checkpoints, provenance, lock."""

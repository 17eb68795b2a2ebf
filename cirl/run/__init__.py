"""What a run is and how it resumes: fields, recipe, folder, checkpoints, provenance, lock."""

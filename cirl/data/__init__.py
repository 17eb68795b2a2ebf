"""From a data set to batches: benchmarks, layouts, cache, augmentation, pretrained weights."""

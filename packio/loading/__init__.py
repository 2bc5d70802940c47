"""From datasets to the training loop: Loader, samplers, epochs, prefetching, devices."""

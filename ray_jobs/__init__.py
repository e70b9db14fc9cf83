"""Jobs: everything that runs an extractor or an encoder over many images, on one machine or on a cluster."""

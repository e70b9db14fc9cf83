"""One module per encoder, each with a `CONFIG`; a new file here is a new encoder."""

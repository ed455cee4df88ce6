"""One file a transport; opened by `transfer.open` alone."""

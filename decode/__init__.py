"""The decode worker: admits handed-off sequences, pulls their pages, and runs the token loop.
It never imports `prefill` or `launch`."""

"""Paged KV: what a page is, who owns which page, how pages are found again, and the tensors."""

"""``ftlib dashboard``: a page in the browser that shows a running job as it goes, and drains or kills a worker."""

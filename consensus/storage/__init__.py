"""A store that all members share: what ``shared_storage`` and the policy ``storage`` stand on.

``store`` is the interface, with ``file_store``, ``redis_store`` and ``etcd_store`` behind it; ``locate`` finds one by its URL.
"""

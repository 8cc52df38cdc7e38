"""A store that all members share: the base of ``shared_storage`` and of the policy ``storage``.

``store`` is the interface; ``file_store``, ``redis_store`` and ``etcd_store`` implement it; ``locate`` finds one by its URL.
"""

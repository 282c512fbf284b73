"""The same steps over a real network, on Flower: the extra ``carvyfl[flower]``.

A user's Flower app makes its two halves with
:func:`~carvyfl.flower.client.client_app` and
:func:`~carvyfl.flower.server.server_app`; ``carvy flower init`` writes such an app.
"""

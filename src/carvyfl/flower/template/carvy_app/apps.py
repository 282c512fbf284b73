"""The two halves of the federation; a model of your own is registered here, in MODELS."""

from carvyfl.flower.client import client_app
from carvyfl.flower.server import server_app

from .data import my_data, test_data

client = client_app(my_data)
server = server_app(test_data)

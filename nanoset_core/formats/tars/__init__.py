"""Tars of samples in the layout of OpenLM, DCLM and webdataset."""

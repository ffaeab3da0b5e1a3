"""Reading samples with numpy alone: nanosets, samplers, tars."""

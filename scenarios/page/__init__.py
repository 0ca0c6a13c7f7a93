"""The report of a run as one HTML file, which asks for nothing outside itself and runs no script.

============  =============================================
``page``      what the file holds, in which order
``html``      the terminal report's tables and texts as HTML
``drawings``  its figures, as SVG
``timeline``  the run's telemetry for Perfetto
============  =============================================
"""

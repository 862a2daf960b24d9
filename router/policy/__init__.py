"""Which worker is best: costs, forecasts, and how one of the candidates is picked.

Entered by KvRouter and by authors of policies; knows nothing of requests on their way.
"""

"""What will come? Arrivals by quantiles, and requests like those of the last minutes."""

from .arrivals import LONGEST_STRETCH, ONE_RATE_S, ArrivalForecast, Forecast
from .bodies import RequestBodies

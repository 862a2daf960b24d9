"""What will come? Arrivals by quantiles, and requests like those of the last minutes."""

from .arrivals import LONGEST_STRETCH, ArrivalForecast, Forecast
from .bodies import RequestBodies

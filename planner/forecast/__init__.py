"""What will come? Arrivals by quantiles, and requests like those of the last minutes."""

from .arrivals import ArrivalForecast, Forecast
from .bodies import RequestBodies

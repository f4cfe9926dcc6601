package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"
)

// healthz says that the process lives.
func (a *API) healthz(c echo.Context) error {
	return c.JSON(http.StatusOK, map[string]string{"status": "ok"})
}

// getMetrics is GET /metrics, for Prometheus.
func (a *API) getMetrics(c echo.Context) error {
	if a.Metrics == nil {
		return echo.ErrNotFound
	}
	a.Metrics.ServeHTTP(c.Response(), c.Request())
	return nil
}

// readyz says that requests can be served: the database answers and has every
// migration that this program needs.
func (a *API) readyz(c echo.Context) error {
	why, err := a.Ready(c.Request().Context())
	if err != nil {
		return err
	}
	if why != "" {
		p := unavailable()
		p.Detail = why
		return p
	}
	return c.JSON(http.StatusOK, map[string]string{"status": "ready"})
}

package httpapi

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/migrations"
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
	pending, err := migrations.Pending(c.Request().Context(), a.DB)
	if err != nil {
		return err
	}
	if pending {
		p := unavailable()
		p.Detail = "the database lacks a migration: run payonce migrate"
		return p
	}
	return c.JSON(http.StatusOK, map[string]string{"status": "ready"})
}

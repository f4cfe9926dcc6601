package httpapi

import (
	"context"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/intake"
	"github.com/payonce/payonce/internal/postgres"
)

// Database is what the API has of the database. It has no commit: what is written
// is a tenant's. What is read beside a tenant is of no merchant, or by a function
// that is made for it, since a table with merchants shows nothing then; or it is read
// as the merchant whom an API key names (door.go).
type Database interface {
	postgres.Querier
	intake.Tenants
	Read(ctx context.Context, reads ...postgres.Read) error
}

// tenant is the database as the caller has it.
func (a *API) tenant(c echo.Context) *postgres.Tenant { return a.DB.Tenant(merchantOf(c).ID) }

package httpapi

import (
	"fmt"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/internal/merchants"
)

// needs lets a request pass whose API key has the scope of the route. It is asked
// before the body is read, and before anything that is known of the key counts: a
// refusal is not stored, uses no key up and shows no stored answer.
func needs(scope merchants.Scope) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if merchantOf(c).May(scope) {
				return next(c)
			}
			c.Response().Header().Set(echo.HeaderWWWAuthenticate, fmt.Sprintf("Bearer error=%q, scope=%q", "insufficient_scope", scope))
			return forbidden(scope)
		}
	}
}

func forbidden(scope merchants.Scope) problem {
	return problem{
		Type: "/problems/forbidden", Title: "The API key is not for this", Status: http.StatusForbidden,
		Detail: "the API key lacks the scope " + string(scope) + ": send the request with one that has it", RetryWith: sameKey,
	}
}

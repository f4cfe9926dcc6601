package httpapi

import (
	"net/http"
	"slices"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
)

const corsAge = 3600 // seconds for which a browser may keep the answer to a preflight

// cors lets the pages of a.Origins call the API from a browser and read what
// the answers say in headers. It sends no Access-Control-Allow-Credentials: the
// API knows no cookies, and a page sends its API key itself.
//
// It comes before authentication, since a preflight carries no key, and so that
// a page can read why it was refused.
func (a *API) cors() echo.MiddlewareFunc {
	return middleware.CORSWithConfig(middleware.CORSConfig{
		Skipper: func(c echo.Context) bool { return len(a.Origins) == 0 || isOrdinaryOptions(c.Request()) },
		// Not AllowOrigins: there * and ? would be patterns.
		AllowOriginFunc: func(origin string) (bool, error) { return slices.Contains(a.Origins, origin), nil },
		AllowHeaders: []string{
			echo.HeaderAuthorization, echo.HeaderContentType, headerKey, headerPrefer, echo.HeaderXRequestID,
		},
		ExposeHeaders: []string{
			headerKey, headerExpires, headerReplayed, headerRetryAfter, headerApplied, echo.HeaderLocation,
			echo.HeaderXRequestID, echo.HeaderWWWAuthenticate, echo.HeaderAllow, headerLink,
		},
		MaxAge: corsAge,
	})
}

// isOrdinaryOptions tells a question about a resource from a browser's preflight.
func isOrdinaryOptions(r *http.Request) bool {
	return r.Method == http.MethodOptions &&
		(r.Header.Get(echo.HeaderOrigin) == "" || r.Header.Get(echo.HeaderAccessControlRequestMethod) == "")
}

package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/testdb"
)

// TestIdempotencyMiddleware_isOneOfEcho: with an inner middleware that writes the errors of
// handlers, Echo's responses are stored and replayed. Without it nothing is stored.
func TestIdempotencyMiddleware_isOneOfEcho(t *testing.T) {
	t.Parallel()
	e := echo.New()
	keyed := echo.WrapMiddleware(idempotency.Middleware(testdb.Reused(t).Pool(), nil, idempotency.HTTPOptions{}))
	writeErrors := func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if err := next(c); err != nil {
				c.Error(err)
			}
			return nil
		}
	}
	calls := 0
	count := func(status int, err error) echo.HandlerFunc {
		return func(c echo.Context) error {
			if calls++; err != nil {
				return err
			}
			return c.JSON(status, map[string]int{"call": calls})
		}
	}
	refusal := echo.NewHTTPError(http.StatusNotFound, "no order")
	e.POST("/made", count(http.StatusCreated, nil), keyed, writeErrors)
	e.POST("/refused", count(0, refusal), keyed, writeErrors)
	e.POST("/late", count(0, refusal), keyed)
	for _, test := range []struct {
		path     string
		status   int
		body     string
		replayed string // the second time
		calls    int
	}{
		{"/made", http.StatusCreated, `{"call":1}`, "true", 1},
		{"/refused", http.StatusNotFound, "no order", "true", 1},
		{"/late", http.StatusInternalServerError, idempotency.ErrNotStorable.Error(), "", 2},
	} {
		calls = 0
		for i := range 2 {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, test.path, nil)
			r.Header.Set("Idempotency-Key", test.path)
			w := httptest.NewRecorder()
			e.ServeHTTP(w, r)
			if replayed := w.Header().Get("Idempotent-Replayed"); w.Code != test.status || !strings.Contains(w.Body.String(), test.body) || i > 0 && replayed != test.replayed {
				t.Errorf("%s, request %d: %+v", test.path, i+1, w)
			}
		}
		if calls != test.calls {
			t.Errorf("%s: %d calls", test.path, calls)
		}
	}
}

package examples_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"
	"github.com/payonce/payonce/idempotency"
	"github.com/payonce/payonce/internal/postgres/local"
	"github.com/payonce/payonce/internal/testrun"
)

type middleware = func(http.Handler) http.Handler

// order writes through the transaction of its key, and responds with its number and path.
func order(w http.ResponseWriter, r *http.Request, path string) {
	var number int
	if err := idempotency.Tx(r.Context()).QueryRow(r.Context(), `insert into orders default values returning number`).Scan(&number); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Location", fmt.Sprint("/orders/", number))
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprint(w, number, " of ", path)
}

// The middleware is put around a router, and around one route. The example http puts it around all
// routes of net/http and of Echo.
func TestMiddleware_worksWithEachRouter(t *testing.T) {
	t.Parallel()
	server := startServer(t, local.Options{InMemory: true})
	testrun.Must(t, server.CreateDatabase(t.Context(), "routers"))
	pool, err := pgxpool.New(t.Context(), server.URL("routers"))
	testrun.Must(t, err)
	t.Cleanup(pool.Close)
	if _, err := pool.Exec(t.Context(), `create table orders (number int generated always as identity);`+idempotency.Schema()); err != nil {
		t.Fatal(err)
	}
	onEcho := func(c echo.Context) error {
		order(c.Response(), c.Request(), c.Param("shop"))
		return nil
	}
	onChi := func(w http.ResponseWriter, r *http.Request) { order(w, r, chi.URLParam(r, "shop")) }
	onMux := func(w http.ResponseWriter, r *http.Request) { order(w, r, r.PathValue("shop")) }
	for name, router := range map[string]func(middleware) http.Handler{
		"net/http, around a route": func(once middleware) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("POST /{shop}/orders", once(http.HandlerFunc(onMux)))
			return mux
		},
		"chi, Use": func(once middleware) http.Handler {
			r := chi.NewRouter()
			r.Use(once)
			r.Post("/{shop}/orders", onChi)
			return r
		},
		"chi, With": func(once middleware) http.Handler {
			r := chi.NewRouter()
			r.With(once).Post("/{shop}/orders", onChi)
			return r
		},
		"Echo, Use": func(once middleware) http.Handler {
			e := echo.New()
			e.Use(echo.WrapMiddleware(once))
			e.POST("/:shop/orders", onEcho)
			return e
		},
	} {
		t.Run(name, func(t *testing.T) {
			handler := router(idempotency.Middleware(pool, idempotency.HTTPOptions{Scope: func(*http.Request) string { return name }}))
			post := func(path, key string) (*httptest.ResponseRecorder, string) {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader("a mug"))
				if key != "" {
					r.Header.Set(idempotency.HeaderKey, key)
				}
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				return w, w.Body.String()
			}
			first, body := post("/acme/orders", "k1")
			replay, again := post("/acme/orders", "k1")
			if first.Code != http.StatusCreated || !strings.HasSuffix(body, " of acme") || first.Header().Get(idempotency.HeaderReplayed) != "" {
				t.Errorf("the first response is %d %q %v", first.Code, body, first.Header())
			}
			if replay.Code != http.StatusCreated || again != body || replay.Header().Get("Location") != first.Header().Get("Location") ||
				replay.Header().Get(idempotency.HeaderReplayed) != "true" {
				t.Errorf("the replay is %d %q %v", replay.Code, again, replay.Header())
			}
			for want, request := range map[int][2]string{http.StatusUnprocessableEntity: {"/globex/orders", "k1"}, http.StatusBadRequest: {"/acme/orders", ""}} {
				if refused, body := post(request[0], request[1]); refused.Code != want {
					t.Errorf("%v: %d %s, want %d", request, refused.Code, body, want)
				}
			}
		})
	}
	var orders, routers int
	if err := pool.QueryRow(t.Context(), `select (select count(*) from orders), (select count(*) from idempotency_keys)`).Scan(&orders,
		&routers); err != nil || orders != 4 || routers != 4 {
		t.Errorf("%d orders, %d keys, %v", orders, routers, err)
	}
}
